//! llama.cpp's `llama-server`: from a profile to a command line.
//!
//! Owns its option names and what must be on the host; leaves starting it to `shell/process`.
//! Invariant: it listens on loopback, and its API key is in its environment, never in its arguments.

use std::{
    ffi::OsString,
    fs::File,
    io::Read,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    os::unix::fs::PermissionsExt,
    path::Path,
};

use crate::config::Accelerator;

/// The profile of one llama-server.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Profile<'a> {
    pub(crate) program: Option<&'a Path>,
    pub(crate) model: &'a str,
    pub(crate) model_file: &'a Path,
    /// 0: a free one.
    pub(crate) port: u16,
    pub(crate) context_tokens: u32,
    pub(crate) threads: u32,
    pub(crate) capacity: u32,
    pub(crate) accelerator: Accelerator,
}

/// Checks the profile against this host.
///
/// # Errors
/// What is missing and what to do.
pub(crate) fn validate(profile: &Profile<'_>) -> Result<(), String> {
    let program =
        profile.program.ok_or("programs.llama_server is not set: name the llama-server program there")?;
    let facts = std::fs::metadata(program)
        .map_err(|error| format!("programs.llama_server {}: {error}", program.display()))?;
    if !facts.is_file() || facts.permissions().mode() & 0o111 == 0 {
        return Err(format!("programs.llama_server {} is not a program that can be run", program.display()));
    }
    let path = profile.model_file.display();
    let mut magic = [0; 4];
    File::open(profile.model_file)
        .and_then(|mut file| file.read_exact(&mut magic))
        .map_err(|error| format!("model_file {path}: {error}"))?;
    if &magic != b"GGUF" {
        return Err(format!("model_file {path} is not a GGUF file"));
    }
    if profile.port != 0 && TcpListener::bind((Ipv4Addr::LOCALHOST, profile.port)).is_err() {
        return Err(
            "its port is in use by another process: end that one, or set port = 0 to take a free one".into(),
        );
    }
    Ok(())
}

/// The port it shall listen on.
///
/// # Errors
/// If none is free.
pub(crate) fn address(port: u16) -> std::io::Result<SocketAddr> {
    if port != 0 {
        return Ok((Ipv4Addr::LOCALHOST, port).into());
    }
    // Free now; if another process takes it before the engine does, the engine ends and is started again.
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()
}

/// Its arguments. Names as `llama-server --help` has them.
pub(crate) fn arguments(profile: &Profile<'_>, address: SocketAddr) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = Vec::new();
    let mut option = |name: &str, value: OsString| arguments.extend([name.into(), value]);
    option("--model", profile.model_file.into());
    option("--alias", profile.model.into());
    option("--host", address.ip().to_string().into());
    option("--port", address.port().to_string().into());
    option("--parallel", profile.capacity.to_string().into());
    if profile.context_tokens > 0 {
        option("--ctx-size", profile.context_tokens.to_string().into());
    }
    if profile.threads > 0 {
        option("--threads", profile.threads.to_string().into());
    }
    if profile.accelerator == Accelerator::Cpu {
        option("--device", "none".into());
    }
    arguments
}

/// Its environment: what a program needs to find its libraries, caches and GPUs, and its key.
pub(crate) fn environment(key: &str) -> Vec<(OsString, OsString)> {
    let inherited = |name: &OsString| {
        let name = name.to_string_lossy();
        matches!(name.as_ref(), "PATH" | "HOME" | "USER" | "LANG" | "TMPDIR" | "TZ" | "LD_LIBRARY_PATH")
            || ["LC_", "CUDA_", "NVIDIA_", "HIP_", "ROCR_", "VK_", "GGML_"]
                .iter()
                .any(|prefix| name.starts_with(prefix))
    };
    let mut environment: Vec<_> = std::env::vars_os().filter(|(name, _)| inherited(name)).collect();
    environment.push(("LLAMA_API_KEY".into(), key.into()));
    environment
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile(file: &Path) -> Profile<'_> {
        Profile {
            program: Some(Path::new("/bin/sh")),
            model: "m; touch x $(id)\n--host 0.0.0.0",
            model_file: file,
            port: 0,
            context_tokens: 4096,
            threads: 2,
            capacity: 4,
            accelerator: Accelerator::Cpu,
        }
    }

    /// Row 95: whatever stands in a profile is one argument; the bind is loopback; the key is not there.
    #[test]
    fn row_95_arguments_are_arguments() {
        let arguments = arguments(&profile(Path::new("/m.gguf")), ([127, 0, 0, 1], 9000).into());
        let text: Vec<_> = arguments.iter().map(|argument| argument.to_str().unwrap()).collect();
        assert_eq!(
            text,
            [
                "--model",
                "/m.gguf",
                "--alias",
                "m; touch x $(id)\n--host 0.0.0.0",
                "--host",
                "127.0.0.1",
                "--port",
                "9000",
                "--parallel",
                "4",
                "--ctx-size",
                "4096",
                "--threads",
                "2",
                "--device",
                "none"
            ]
        );
    }

    /// Row 95: nothing of the agent's environment goes along but what is listed.
    #[test]
    fn row_95_the_environment_is_a_list() {
        let environment = environment("k");
        assert!(environment.iter().any(|(name, value)| name == "LLAMA_API_KEY" && value == "k"));
        assert!(
            !environment
                .iter()
                .any(|(name, _)| name == "LD_PRELOAD" || name.to_string_lossy().starts_with("CARGO"))
        );
    }

    #[test]
    fn the_host_is_checked() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("m.gguf");
        assert!(validate(&profile(&file)).unwrap_err().contains("model_file"));
        std::fs::write(&file, b"GG").unwrap();
        assert!(validate(&profile(&file)).is_err());
        std::fs::write(&file, b"PK\x03\x04").unwrap();
        assert!(validate(&profile(&file)).unwrap_err().contains("GGUF"));
        std::fs::write(&file, b"GGUF\x03").unwrap();
        validate(&profile(&file)).unwrap();
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = taken.local_addr().unwrap().port();
        let said = validate(&Profile { port, ..profile(&file) }).unwrap_err();
        assert!(said.contains("in use") && !said.contains(&port.to_string()));
        for program in [None, Some(Path::new("/nowhere/llama-server")), Some(Path::new("/tmp"))] {
            assert!(
                validate(&Profile { program, ..profile(&file) })
                    .unwrap_err()
                    .contains("programs.llama_server")
            );
        }
    }
}
