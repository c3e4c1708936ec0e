//! The scripted engine as a process: `scripted-engine ADDRESS MODEL...`; prints its address and runs until ended.

use std::io::Write;

fn main() -> std::io::Result<()> {
    let mut args = std::env::args().skip(1);
    let address = args.next().unwrap_or_else(|| "127.0.0.1:0".to_owned());
    let models: Vec<String> = args.collect();
    let models: Vec<&str> = models.iter().map(String::as_str).collect();
    let engine = umbel_tests::engine::Engine::listen(
        &address,
        if models.is_empty() { &["scripted"] } else { &models },
    )?;
    writeln!(std::io::stdout(), "{}", engine.address())?;
    loop {
        std::thread::park();
    }
}
