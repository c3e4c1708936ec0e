//! Ports of a fleet on loopback, kept from others as long as the fleet lives.
//!
//! A port that was only looked up could be taken before its daemon binds it, by another test or by any outgoing
//! connection. So each is held by a socket that is bound and never listens: with SO_REUSEADDR on both, the daemon
//! may still listen there, while the kernel gives the port to nobody who asks for any. Invariant: a held port is
//! held until this is dropped.

use std::{
    io,
    net::{Ipv4Addr, SocketAddrV4},
    os::fd::OwnedFd,
    time::Duration,
};

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, getsockname, socket_with, sockopt};
use tokio::time::{Instant, sleep};

use crate::exit::{Failure, Outcome};

/// How long the processes of a killed fleet may take to let go of its ports.
const FREE: Duration = Duration::from_secs(15);

/// Ports that are held.
#[derive(Debug, Default)]
pub(crate) struct Ports {
    held: Vec<OwnedFd>,
}

impl Ports {
    /// Holds a port that the kernel chooses.
    pub(crate) fn any(&mut self) -> Outcome<u16> {
        let (socket, port) =
            hold(0).map_err(|error| Failure::failed(format!("no free port on loopback: {error}")))?;
        self.held.push(socket);
        Ok(port)
    }

    /// Holds a port of a kept fleet, as soon as its last owner is gone.
    pub(crate) async fn again(&mut self, port: u16) -> Outcome {
        let deadline = Instant::now() + FREE;
        loop {
            match hold(port) {
                Ok((socket, _)) => {
                    self.held.push(socket);
                    return Ok(());
                }
                Err(_) if Instant::now() < deadline => sleep(Duration::from_millis(100)).await,
                Err(error) => {
                    return Err(Failure::failed(format!("port {port} of this fleet is not free: {error}"))
                        .remedy("end what uses it, or start a new fleet in another folder"));
                }
            }
        }
    }
}

fn hold(port: u16) -> io::Result<(OwnedFd, u16)> {
    let socket = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    bind(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, port))?;
    let address = SocketAddrV4::try_from(getsockname(&socket)?)?;
    Ok((socket, address.port()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::{
        collections::HashSet,
        net::{Ipv4Addr, TcpListener},
    };

    use super::Ports;

    #[test]
    fn a_held_port_can_be_listened_on_and_is_given_to_nobody_else() {
        let mut ports = Ports::default();
        let held: HashSet<u16> = (0..64).map(|_| ports.any().unwrap()).collect();
        assert_eq!(held.len(), 64);
        let others: Vec<TcpListener> =
            (0..256).map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap()).collect();
        assert!(others.iter().all(|other| !held.contains(&other.local_addr().unwrap().port())));
        for port in held {
            TcpListener::bind((Ipv4Addr::LOCALHOST, port)).unwrap();
        }
    }
}
