//! Tells the program which compiler made it, for `umbel_build_info`.

use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=RUSTC");
    println!("cargo::rerun-if-env-changed=UMBEL_REVISION");
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let told = Command::new(rustc).arg("--version").output();
    let text = told.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    // `rustc 1.95.0 (hash date)`.
    println!("cargo::rustc-env=UMBEL_RUSTC={}", text.split_whitespace().nth(1).unwrap_or("unknown"));
}
