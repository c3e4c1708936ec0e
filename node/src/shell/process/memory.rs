//! How much of the host's memory an engine had at most.
//!
//! Owns adding up its processes; leaves memory of GPUs to `gpu`. Invariant: its holder, which is the agent's, is not counted.
//! Pages that several of its processes share are counted once for each: what is said is never too little.

use std::fs;

use crate::core::process_tree::{Born, Family, Leader, ProcessId};

/// Bytes of the host's memory that the living processes of an engine had at their highest, together. Blocks on `/proc`.
pub(crate) fn peak(leader: &Leader) -> u64 {
    let root = Born { pid: leader.id, start_time: leader.start };
    let members = super::members(&mut Family::new(&[root]), &leader.nonce, true);
    let own = members.iter().filter(|facts| !root.is(facts));
    own.map(|facts| high_water(facts.id)).fold(0, u64::saturating_add)
}

/// Of one process.
fn high_water(id: ProcessId) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", id.0)).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.split_ascii_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or_default().saturating_mul(1024)
}

#[cfg(test)]
mod tests {
    use std::{
        process::{Command, Stdio},
        time::{Duration, Instant},
    };

    use super::*;
    use crate::shell::process::{self, born};

    /// All that an engine started is counted, wherever it went, and its holder is not.
    #[test]
    fn all_processes_of_an_engine_are_counted() {
        let nonce = format!("memory-{}", std::process::id());
        let mut holder = Command::new("/bin/sh")
            .args(["-c", "sleep 1000 & setsid sleep 1000 & read _; kill %1 %2 2>/dev/null; kill $!; exit 0"])
            .env(process::NONCE, &nonce)
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let root = born(i32::try_from(holder.id()).unwrap());
        let leader =
            Leader { engine: "e".into(), id: root.pid, start: root.start_time, nonce: nonce.clone() };
        let own = || {
            let all = process::members(&mut Family::new(&[root]), &nonce, true);
            all.into_iter().filter(|facts| !root.is(facts)).map(|facts| facts.id).collect::<Vec<_>>()
        };
        let (end, is_sleep) = (Instant::now() + Duration::from_secs(20), |id: &ProcessId| {
            fs::read_to_string(format!("/proc/{}/comm", id.0)).is_ok_and(|name| name.trim() == "sleep")
        });
        while own().iter().filter(|id| is_sleep(id)).count() < 2 {
            assert!(Instant::now() < end, "two processes of it were waited for in vain");
            std::thread::sleep(process::LOOK);
        }
        let each: Vec<u64> = own().into_iter().map(high_water).collect();
        let (peak, sum) = (peak(&leader), each.iter().sum::<u64>());
        for left in own() {
            process::signal(&[process::facts(left).unwrap()], rustix::process::Signal::KILL);
        }
        holder.kill().unwrap();
        holder.wait().unwrap();
        assert!(each.len() == 2 && each.iter().all(|bytes| *bytes > 0) && peak >= sum, "{each:?} {peak}");
        assert!(peak < sum + high_water(process::own().pid), "the holder is not among them");
    }
}
