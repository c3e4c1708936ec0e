//! Who listens where, by the kernel's own list of sockets.
//!
//! Owns reading a row of `/proc/PID/net/tcp` or `tcp6`, and which addresses other hosts may reach; leaves the files, and whose
//! socket it is, to `shell/process`. Invariant: an address that cannot be read is taken for one that others may reach.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The word of the kernel for a socket that listens.
const LISTENS: &str = "0A";

/// A socket that listens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Listener {
    /// Other hosts may reach it: it is not bound to loopback.
    pub(crate) is_open: bool,
    pub(crate) port: u16,
    /// By this the processes that have it are found.
    pub(crate) inode: u64,
}

/// Reads one row; nothing of a socket that does not listen, nor of the heading.
pub(crate) fn listener(row: &str) -> Option<Listener> {
    let mut fields = row.split_ascii_whitespace();
    let (address, port) = fields.nth(1)?.rsplit_once(':')?;
    if fields.nth(1)? != LISTENS {
        return None;
    }
    // Behind the state: queues, timer, retransmits, user, timeout.
    let inode = fields.nth(5)?.parse().ok()?;
    let is_open = self::address(address).is_none_or(|address| !is_loopback(address));
    Some(Listener { is_open, port: u16::from_str_radix(port, 16).ok()?, inode })
}

/// The kernel writes each word of an address as this host's own number.
fn address(hex: &str) -> Option<IpAddr> {
    let word = |at: usize| Some(u32::from_str_radix(hex.get(at..at + 8)?, 16).ok()?.to_ne_bytes());
    match hex.len() {
        8 => Some(Ipv4Addr::from(word(0)?).into()),
        32 => {
            let words = [word(0)?, word(8)?, word(16)?, word(24)?];
            let bytes: [u8; 16] = words.concat().try_into().ok()?;
            Some(Ipv6Addr::from(bytes).into())
        }
        _ => None,
    }
}

fn is_loopback(address: IpAddr) -> bool {
    address.to_canonical().is_loopback()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(address: &str, state: &str) -> String {
        format!(
            "   7: {address} 00000000:0000 {state} 00000000:00000000 00:00000000 00000000  1000        0 10897819 1 0000 100 0 0 10 0"
        )
    }

    #[cfg(target_endian = "little")]
    #[test]
    fn row_95_what_listens_to_other_hosts_is_told_apart() {
        let open = |address: &str| listener(&row(address, LISTENS)).map(|listener| listener.is_open);
        let here = listener(&row("0100007F:B51D", LISTENS)).unwrap();
        assert_eq!(here, Listener { is_open: false, port: 0xB51D, inode: 10_897_819 });
        assert_eq!(open("0500007F:0050"), Some(false), "127.0.0.5");
        assert_eq!(open("00000000:0050"), Some(true));
        assert_eq!(open("0A01A8C0:0050"), Some(true), "192.168.1.10");
        assert_eq!(open("00000000000000000000000000000000:0050"), Some(true));
        assert_eq!(open("00000000000000000000000001000000:0050"), Some(false), "::1");
        assert_eq!(open("0000000000000000FFFF00000100007F:0050"), Some(false), "::ffff:127.0.0.1");
        assert_eq!(open("0000000000000000FFFF00000A01A8C0:0050"), Some(true));
        assert_eq!(open("??:0050"), Some(true), "what cannot be read");
        assert_eq!(listener(&row("00000000:0050", "01")), None, "a connection");
        assert_eq!(listener("  sl  local_address rem_address   st tx_queue rx_queue"), None);
        assert_eq!(listener(""), None);
    }
}
