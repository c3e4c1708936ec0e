//! Options of a TCP socket.
//!
//! Invariant: a socket of this crate never waits for more bytes (Nagle), and neither end's kernel holds a deep queue,
//! or priorities would mean nothing.

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
    let _ = set(stream, libc::TCP_NOTSENT_LOWAT, limits::NOT_SENT_LOW_WATER);
    let _ = set(stream, libc::TCP_WINDOW_CLAMP, limits::RECEIVE_CLAMP);
    Ok(())
}

/// Has the kernel keep what is written from now on until the socket is shut down, so that the end travels with it. An
/// improvement only: without it they go one after the other.
pub(crate) fn last_write(stream: &TcpStream) {
    let _ = set(stream, libc::TCP_CORK, 1);
}

#[allow(unsafe_code, reason = "neither socket2 nor rustix has a setter for all of these options")]
fn set(stream: &TcpStream, option: libc::c_int, value: u32) -> io::Result<()> {
    let fd = stream.as_fd().as_raw_fd();
    // SAFETY: the descriptor is open while `stream` is borrowed; the pointer and length are those of `value`.
    let result = unsafe {
        libc::setsockopt(
            fd,
            libc::IPPROTO_TCP,
            option,
            (&raw const value).cast(),
            size_of::<u32>() as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
