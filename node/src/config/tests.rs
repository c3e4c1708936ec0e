//! Good files, and everything that a file can have wrong.

use super::*;

const NODE: &str = "[node]\nstate_dir = \"/var/lib/umbel-node\"\nallow_sim = true\n";

fn parse(text: &str) -> Result<Config, String> {
    Config::parse(text, Path::new("/etc/umbel/node.toml")).map_err(|error| {
        assert_eq!(error.exit_code(), 78);
        error.to_string()
    })
}

fn engine(lines: &str) -> Result<EngineConfig, String> {
    parse(&format!("{NODE}[[engine]]\nname = \"chat\"\nmodel = \"m\"\n{lines}\n"))
        .map(|config| config.engines[0].clone())
}

#[test]
fn a_small_file_is_enough() {
    let config = parse("[node]\nstate_dir = \"state\"\n").unwrap();
    assert_eq!(config.state_dir, Path::new("/etc/umbel/state"));
    assert_eq!(config.socket, Path::new("/etc/umbel/state/node.sock"));
    assert_eq!((config.accelerator, config.drain), (Accelerator::Auto, Duration::from_secs(30)));
    assert_eq!((config.log_level.as_str(), config.log_format), ("info", LogFormat::Auto));
    assert!(config.engines.is_empty());
    assert_eq!(parse("[node]\n").unwrap().state_dir, Path::new("/var/lib/umbel/node"));
}

#[test]
fn engines_of_each_kind() {
    let sim = engine("kind = \"sim\"\ntoken_delay = \"20ms\"").unwrap();
    assert_eq!(
        sim.source,
        EngineSource::Sim {
            first_token_delay: Duration::ZERO,
            token_delay: Duration::from_millis(20),
            tokens: 16
        }
    );
    assert_eq!((sim.capacity, sim.category.as_str()), (4, "local_inference"));
    let here = engine("kind = \"external\"\nurl = \"http://[::1]:8000/v1/\"").unwrap();
    assert_eq!(
        here.source,
        EngineSource::External { authority: "[::1]:8000".into(), base_path: String::new() }
    );
    assert_eq!(here.category, "local_inference");
    let there = engine("kind = \"external\"\nurl = \"http://gateway.lan/openai/v1\"").unwrap();
    assert_eq!(
        there.source,
        EngineSource::External { authority: "gateway.lan:80".into(), base_path: "/openai".into() }
    );
    assert_eq!(there.category, "api");
    let llama = engine("kind = \"llama-server\"\nmodel_file = \"m.gguf\"").unwrap();
    let EngineSource::Process(process) = llama.source else { panic!() };
    assert_eq!((process.model.as_path(), process.port), (Path::new("/etc/umbel/m.gguf"), 0));
    assert_eq!(
        (process.start_timeout(), process.stall_timeout),
        (Duration::from_secs(600), Duration::from_secs(300))
    );
    let vllm = engine("kind = \"vllm\"\nmodel_folder = \"/m/qwen\"\ngpus = [\"GPU-1\"]\nstart_timeout = \"1h\"\nprofile = { max_model_len = 8192 }").unwrap();
    let EngineSource::Process(process) = &vllm.source else { panic!() };
    assert_eq!(
        (process.profile.context_tokens(1), process.start_timeout()),
        (Some(8192), Duration::from_secs(3600))
    );
    assert_eq!((vllm.source.kind(), process.gpus.len()), ("vllm", 1));
    let text = format!(
        "{NODE}[programs.cli]\necho = \"bin/echo\"\n[[engine]]\nname = \"e\"\nkind = \"cli\"\nmodel = \"m\"\nprogram = \"echo\"\n"
    );
    let cli = parse(&text).unwrap().engines.remove(0);
    assert_eq!(
        cli.source,
        EngineSource::Cli { program: "/etc/umbel/bin/echo".into(), timeout: Duration::from_secs(600) }
    );
    assert_eq!(cli.category, "cli");
}

#[test]
fn hardware_and_places() {
    let config = parse(
        "[node]\nnvml_library = \"lib/nvml.so\"\n[node.fabric_labels]\nzone = \"a\"\n\
         [artifacts]\nquarantine = \"q\"\n[artifacts.roots]\nmodels = \"/srv/models\"\n",
    )
    .unwrap();
    assert_eq!(config.nvml_library.as_deref(), Some(Path::new("/etc/umbel/lib/nvml.so")));
    assert_eq!(config.fabric_labels["zone"], "a");
    assert_eq!(config.artifacts.quarantine.as_deref(), Some(Path::new("/etc/umbel/q")));
    assert_eq!(config.artifacts.roots["models"], Path::new("/srv/models"));
    assert!(!config.allow_volatile_state);
    for (lines, wanted) in [
        ("[artifacts.roots]\nmodels = \"m\"", "artifacts.quarantine"),
        ("[artifacts]\nquarantine = \"q\"\n[artifacts.roots]\nstate = \"m\"", "artifacts.roots.state"),
        ("[artifacts]\nquarantine = \"q\"\n[artifacts.roots]\n\"a b\" = \"m\"", "artifacts.roots.a b"),
        ("[node.fabric_labels]\n\"a b\" = \"c\"", "node.fabric_labels"),
    ] {
        let said = parse(&format!("{NODE}{lines}\n")).unwrap_err();
        assert!(said.contains(wanted), "{lines}: {said}");
    }
}

/// Each error names the field by its path.
#[test]
fn errors_name_the_field() {
    for (lines, wanted) in [
        ("kind = \"external\"", "engine[0].url"),
        ("kind = \"external\"\nurl = \"https://x:1\"", "engine[0].url: https"),
        ("kind = \"external\"\nurl = \"http://u:p@x:1\"", "engine[0].url"),
        ("kind = \"external\"\nurl = \"http://x:99999\"", "engine[0].url"),
        ("kind = \"external\"\nurl = \"http://x:1/a b\"", "engine[0].url"),
        ("kind = \"external\"\nurl = \"http://x:1/../v1\"", "engine[0].url"),
        ("kind = \"llama-server\"", "engine[0].model_file"),
        ("kind = \"llama-server\"\nmodel_file = \"m\"\nstart_timeout = \"0s\"", "engine[0].start_timeout"),
        (
            "kind = \"sim\"\nport = 1",
            "engine[0].port: is only for engines of kind \"vllm\", \"sglang\", \"llama-server\"",
        ),
        ("kind = \"vllm\"", "engine[0].model_folder: is missing"),
        (
            "kind = \"vllm\"\nmodel_folder = \"m\"\nprofile = { host = \"::\" }",
            "engine[0].profile.host: may not stand in a profile",
        ),
        ("kind = \"vllm\"\nmodel_folder = \"m\"\ngpus = [\"0\"]", "engine[0].gpus: must be"),
        (
            "kind = \"vllm\"\nmodel_folder = \"m\"\nprofile = { max_num_seqs = 2 }",
            "engine[0].capacity: must be at most what",
        ),
        (
            "kind = \"llama-server\"\nmodel_file = \"m\"\ncontext_tokens = 99999999",
            "engine[0].context_tokens: must be",
        ),
        (
            "kind = \"llama-server\"\nmodel_file = \"m\"\nthreads = 2\nprofile = { threads = 3 }",
            "engine[0].threads: stands in",
        ),
        (
            "kind = \"cli\"\nprogram = \"x\"",
            "engine[0].program: must be the name of a program in [programs.cli]",
        ),
        ("kind = \"sim\"\ncapacity = 0", "engine[0].capacity"),
        ("kind = \"sim\"\naliases = [\"m\"]", "engine[0].aliases"),
        ("kind = \"sim\"\ncategory = \"cli\"", "engine[0].category"),
        ("kind = \"sim\"\nlong_context_capacity = 9", "engine[0].long_context_capacity"),
        ("kind = \"sim\"\nlong_context_threshold_tokens = 9", "engine[0].long_context_threshold_tokens"),
        ("kind = \"sim\"\ncapacityy = 1", "did you mean \"capacity\"?"),
        ("kind = \"vlm\"", "engine[0].kind: must be one of"),
        (
            "kind = \"sim\"\ncapacity = \"two\"",
            "engine[0].capacity: must be a whole number from 0 to 4294967295, not a text",
        ),
        ("kind = 5", "engine[0].kind: "),
        ("kind = \"sim\"\ntoken_delay = \"fast\"", ":8:15: engine[0].token_delay: write \"30s\""),
    ] {
        let said = engine(lines).unwrap_err();
        assert!(said.starts_with("/etc/umbel/node.toml:") && said.contains(wanted), "{lines}: {said}");
    }
}

/// Row 95: what an operator may be tempted to slip in is no key here.
#[test]
fn row_95_no_arguments_and_no_environment() {
    for line in ["args = [\"--host\", \"0.0.0.0\"]", "env = { LD_PRELOAD = \"x\" }", "host = \"0.0.0.0\""] {
        let said = engine(&format!("kind = \"llama-server\"\nmodel_file = \"m\"\n{line}")).unwrap_err();
        assert!(said.contains("unknown key"), "{said}");
    }
}

#[test]
fn what_is_wrong_outside_engines() {
    for (text, wanted) in [
        ("[node]\nstate_dir = \"\"\n", "node.state_dir"),
        (
            "[node]\nstate_dir = \"s\"\naccelerator = \"tpu\"\n",
            ":3:15: node.accelerator: must be one of auto, nvidia, cpu, not \"tpu\"",
        ),
        ("[node]\nstate_dir = \"s\"\n[node.labels]\n\"a b\" = \"c\"\n", "node.labels"),
        ("[node]\nstate_dir = \"s\"\n[[engine]]\nname=\"a\"\nkind=\"sim\"\nmodel=\"m\"\n", "allow_sim"),
        (
            "[node]\nstate_dir = \"s\"\nallow_sim = true\n[[engine]]\nname=\"../a\"\nkind=\"sim\"\nmodel=\"m\"\n",
            "engine[0].name",
        ),
        ("[nodes]\n", "unknown key \"nodes\""),
    ] {
        let said = parse(text).unwrap_err();
        assert!(said.contains(wanted), "{text}: {said}");
    }
    let twice = "[[engine]]\nname = \"a\"\nkind = \"sim\"\nmodel = \"m\"\n".repeat(2);
    assert!(parse(&format!("{NODE}{twice}")).unwrap_err().contains("engine[1].name"));
    let long = format!("[node]\nstate_dir = \"/{}\"\n", "x".repeat(120));
    assert!(parse(&long).unwrap_err().contains("listen.socket"));
}
