//! Secrets in and out: a prompt without echo, standard input, files; printed once or written to a 0600 file.
//!
//! Owns how a secret enters and leaves this process; leaves making and parsing them to the wire's `token`.
//! Invariant: a secret never comes from the command line and is never part of an error.

use std::{
    fs::{File, OpenOptions},
    io::{IsTerminal as _, Read as _, Write as _},
    os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _},
    path::Path,
};

use rustix::termios::{self, LocalModes, OptionalActions, SpecialCodeIndex, Termios};
use zeroize::Zeroizing;

use crate::{
    args::TokenSource,
    exit::{Exit, Failure, Outcome},
    output::{printable, put, say},
};

/// The longest secret text that is read, in bytes: an enrollment token with many addresses has about 1 KiB.
const MAX_SECRET: u64 = 16 * 1024;

impl TokenSource {
    /// Whether a token, or what looks as if it were one, was given on the command line.
    pub(crate) fn in_argv(&self) -> bool {
        self.token.is_some() || self.source.as_deref().is_some_and(|source| source != "-")
    }
}

/// Reads an enrollment token from where the command line says.
pub(crate) fn read_enrollment_token(source: &TokenSource) -> Outcome<Zeroizing<String>> {
    refuse_in_argv(source.in_argv())?;
    if let Some(path) = &source.token_file {
        return read_file(path, "enrollment token");
    }
    if source.source.is_some() {
        return take("standard input", std::io::stdin().lock());
    }
    prompt("Enrollment token (not shown): ")
}

/// Refuses a secret that was given on the command line, without repeating it.
pub(crate) fn refuse_in_argv(given: bool) -> Outcome {
    if !given {
        return Ok(());
    }
    Err(Failure::usage(
        "a token was given on the command line, where every user of this host can read it and the shell keeps it",
    )
    .remedy("leave it out and paste it at the prompt, pipe it in with `-`, or name a file with --token-file")
    .remedy("if it was a real token, revoke it and make a new one"))
}

/// Reads a secret from a file.
pub(crate) fn read_file(path: &Path, what: &str) -> Outcome<Zeroizing<String>> {
    let name = path.display();
    let file = File::open(path)
        .map_err(|error| Failure::usage(format!("cannot read the {what} from {name}: {error}")))?;
    let mode = file.metadata().map_or(0, |meta| meta.permissions().mode());
    if mode & 0o077 != 0 {
        say(&format!("warning: {name} can be read by others (mode {:04o}); chmod 600 it", mode & 0o7777));
    }
    take(&name.to_string(), file)
}

/// Where a new secret goes: standard output, or a new file. Opened before the secret is made, so that one whose
/// file cannot be made is never lost.
#[derive(Debug)]
pub(crate) struct Handover<'a> {
    file: Option<(File, &'a Path)>,
    given: bool,
}

impl<'a> Handover<'a> {
    /// Makes the file, if one is named; its mode is 0600 and it was not there before.
    pub(crate) fn open(out: Option<&'a Path>, dry_run: bool) -> Outcome<Self> {
        let Some(path) = out.filter(|_| !dry_run) else { return Ok(Handover { file: None, given: true }) };
        let file =
            OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map_err(|error| {
                Failure::usage(format!("cannot make {}: {error}", path.display()))
                    .remedy("name a file that is not there yet, in a folder that you may write to")
            })?;
        Ok(Handover { file: Some((file, path)), given: false })
    }

    /// Hands the secret over, once.
    pub(crate) fn give(mut self, secret: &str, what: &str) -> Outcome {
        self.given = true;
        let Some((file, path)) = &mut self.file else {
            if std::io::stdout().is_terminal() {
                say(&format!("The {what}, shown only this once:"));
            }
            put(secret);
            return Ok(());
        };
        file.write_all(secret.as_bytes())
            .and_then(|()| file.write_all(b"\n"))
            .and_then(|()| file.sync_all())
            .map_err(|error| Failure::failed(format!("cannot write {}: {error}", path.display())))?;
        say(&format!("The {what} is in {} (mode 0600).", path.display()));
        Ok(())
    }
}

impl Drop for Handover<'_> {
    /// Takes the empty file away when there was no secret to put into it.
    fn drop(&mut self) {
        if let (Some((_, path)), false) = (&self.file, self.given) {
            let _ = std::fs::remove_file(path);
        }
    }
}

fn take(from: &str, reader: impl std::io::Read) -> Outcome<Zeroizing<String>> {
    let mut text = Zeroizing::new(String::new());
    let read = reader.take(MAX_SECRET + 1).read_to_string(&mut text);
    // The error's own text may quote what was read, so it is not repeated.
    let length = read.map_err(|_| Failure::usage(format!("{from} cannot be read as text")))?;
    if length as u64 > MAX_SECRET {
        return Err(Failure::usage(format!("{from} holds more than {MAX_SECRET} bytes: this is no token")));
    }
    let trimmed = Zeroizing::new(text.trim().to_owned());
    if trimmed.is_empty() {
        return Err(Failure::usage(format!("{from} is empty: no token was given")));
    }
    Ok(trimmed)
}

/// Asks on the terminal, whatever standard input is, and shows nothing of what is typed.
fn prompt(question: &str) -> Outcome<Zeroizing<String>> {
    let tty = OpenOptions::new().read(true).write(true).open("/dev/tty").map_err(|_| {
        Failure::usage("there is no terminal to ask for the token on")
            .remedy("pipe the token in: ... enroll -")
            .remedy("name a file: ... enroll --token-file FILE")
    })?;
    let quiet = QuietTerminal::start(&tty)?;
    let mut out = &tty;
    out.write_all(printable(question).as_bytes())?;
    let line = read_line(&tty);
    drop(quiet);
    out.write_all(b"\r\n")?;
    let line = line?;
    if line.is_empty() {
        return Err(Failure::usage("no token was typed"));
    }
    Ok(line)
}

fn read_line(mut tty: &File) -> Outcome<Zeroizing<String>> {
    const CTRL_C: u8 = 3;
    const CTRL_D: u8 = 4;
    const CTRL_U: u8 = 21;
    const BACKSPACE: u8 = 8;
    const DELETE: u8 = 127;
    // Reserved at once: a growing vector would leave pieces of the secret behind.
    let mut line = Zeroizing::new(Vec::with_capacity(MAX_SECRET as usize));
    let mut byte = [0u8];
    loop {
        if tty.read(&mut byte)? == 0 {
            break;
        }
        let [byte] = byte;
        match byte {
            b'\r' | b'\n' => break,
            CTRL_C => return Err(Failure::new(Exit::Interrupted, "interrupted")),
            CTRL_D if line.is_empty() => break,
            CTRL_U => line.clear(),
            BACKSPACE | DELETE => drop(line.pop()),
            byte if line.len() < MAX_SECRET as usize => line.push(byte),
            _ => return Err(Failure::usage("too long: this is no token")),
        }
    }
    let text = std::str::from_utf8(&line).map_err(|_| Failure::usage("what was typed is not text"))?;
    Ok(Zeroizing::new(text.trim().to_owned()))
}

/// A terminal that neither echoes nor edits, until this is dropped. Ctrl-C is read as a character, so that no
/// signal can end the process with the echo off.
struct QuietTerminal<'a> {
    tty: &'a File,
    before: Termios,
}

impl<'a> QuietTerminal<'a> {
    fn start(tty: &'a File) -> Outcome<Self> {
        let before = termios::tcgetattr(tty).map_err(std::io::Error::from)?;
        let mut quiet = before.clone();
        quiet.local_modes -= LocalModes::ECHO | LocalModes::ECHONL | LocalModes::ICANON | LocalModes::ISIG;
        quiet.special_codes[SpecialCodeIndex::VMIN] = 1;
        quiet.special_codes[SpecialCodeIndex::VTIME] = 0;
        termios::tcsetattr(tty, OptionalActions::Flush, &quiet).map_err(std::io::Error::from)?;
        Ok(QuietTerminal { tty, before })
    }
}

impl Drop for QuietTerminal<'_> {
    fn drop(&mut self) {
        // There is nothing better to do when the terminal is gone.
        let _ = termios::tcsetattr(self.tty, OptionalActions::Flush, &self.before);
    }
}
