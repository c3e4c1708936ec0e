//! Options of a TCP socket.
//!
//! Invariant: a socket of this crate never waits for more bytes (Nagle) and never holds a deep queue of unsent
//! ones, or priorities would mean nothing.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use tokio::net::TcpStream;

use crate::limits;

/// Sets what every connection needs. Only TCP_NODELAY is required; the rest are improvements of a kernel that has
/// them.
///
/// # Errors
/// If the socket is already dead.
pub(crate) fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = socket2::SockRef::from(stream);
    let _ = socket.set_tcp_user_timeout(Some(limits::USER_TIMEOUT));
    let _ = not_sent_low_water(stream, limits::NOT_SENT_LOW_WATER);
    Ok(())
}

#[allow(unsafe_code, reason = "neither socket2 nor rustix has a setter for TCP_NOTSENT_LOWAT")]
fn not_sent_low_water(stream: &TcpStream, bytes: u32) -> io::Result<()> {
    let fd = stream.as_fd().as_raw_fd();
    // SAFETY: the descriptor is open while `stream` is borrowed; the pointer and length are those of `bytes`.
    let result = unsafe {
        libc::setsockopt(
            fd,
            libc::IPPROTO_TCP,
            libc::TCP_NOTSENT_LOWAT,
            (&raw const bytes).cast(),
            size_of::<u32>() as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
