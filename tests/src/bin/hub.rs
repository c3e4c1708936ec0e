//! The tests' hub as a process: `hub REPOSITORY REVISION FOLDER` serves the files of a folder until it is killed, and prints its
//! URL. For scripts.

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
    writeln!(std::io::stdout(), "{}", hub.url())?;
    loop {
        std::thread::park();
    }
}
