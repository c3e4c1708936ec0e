//! The tests' hub as a process: `hub REPOSITORY REVISION FOLDER` serves the files of a folder until it is killed, and prints its
//! URL. Lines of `sha256sum` on its standard input say what it tells of large files, as hubs do. For scripts.

use std::io::Write as _;
use std::path::Path;

use umbel_tests::hub::Hub;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [repository, revision, folder] = words.as_slice() else {
        return Err("hub REPOSITORY REVISION FOLDER".into());
    };
    let hub = Hub::start()?;
    for entry in std::fs::read_dir(Path::new(folder))? {
        let path = entry?.path();
        if let (true, Some(name)) = (path.is_file(), path.file_name().and_then(|name| name.to_str())) {
            hub.add(repository, revision, name, std::fs::read(&path)?);
        }
    }
    for line in std::io::stdin().lines() {
        if let Some((sha256, name)) = line?.split_once("  ") {
            hub.tell(repository, revision, name, sha256);
        }
    }
    writeln!(std::io::stdout(), "{}", hub.url())?;
    loop {
        std::thread::park();
    }
}
