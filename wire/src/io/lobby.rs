//! Who may do TLS and say hello now: bounded in all and by address, so that silent peers cost their neighbours
//! nothing.
//!
//! At the bound of an address its connection that was silent longest (over 1 s) makes room, and at the bound in all
//! one of whoever has the most; else the newcomer waits. The newest waits at the head: in a flood of silent ones a
//! real peer is among the newest. An address is a host's: see [`host_of`]. Invariant: what a `Place` holds is given
//! back by its drop.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::clock;
use crate::guesses::host_of;
use crate::io::socket::Traffic;
use crate::limits;

/// The places.
#[derive(Default)]
pub(crate) struct Lobby(Mutex<State>);

#[derive(Default)]
struct State {
    next: u64,
    inside: usize,
    waiting: usize,
    addresses: HashMap<IpAddr, Address>,
}

#[derive(Default)]
struct Address {
    inside: Vec<Guest>,
    /// The newest last.
    waiting: Vec<Guest>,
}

struct Guest {
    id: u64,
    traffic: Arc<Traffic>,
    called: CancellationToken,
    dismissed: CancellationToken,
}

/// A place, or the wish for one.
pub(crate) struct Place {
    lobby: Arc<Lobby>,
    address: IpAddr,
    id: u64,
    /// Cancelled when somebody else needs it.
    pub(crate) dismissed: CancellationToken,
}

impl Lobby {
    /// Takes a place, waiting for one up to 5 s.
    pub(crate) async fn enter(self: &Arc<Self>, address: IpAddr, traffic: Arc<Traffic>) -> Option<Place> {
        let address = host_of(address);
        let (called, dismissed) = (CancellationToken::new(), CancellationToken::new());
        let place = {
            let mut state = self.state();
            state.next += 1;
            let id = state.next;
            let guest = Guest { id, traffic, called: called.clone(), dismissed: dismissed.clone() };
            state.queue(address, guest);
            state.settle(address, clock::now());
            Place { lobby: self.clone(), address, id, dismissed: dismissed.clone() }
        };
        let turn = async {
            loop {
                tokio::select! {
                    biased;
                    () = called.cancelled() => return true,
                    () = dismissed.cancelled() => return false,
                    () = sleep(limits::NEWCOMER_GRACE / 2) => self.state().settle(address, clock::now()),
                }
            }
        };
        matches!(timeout(limits::STEP_TIMEOUT, turn).await, Ok(true)).then_some(place)
    }

    /// Connections that have a place, and that wait for one.
    #[cfg(test)]
    pub(crate) fn count(&self) -> (usize, usize) {
        let state = self.state();
        (state.inside, state.waiting)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.lobby.state().leave(self.address, self.id, clock::now());
    }
}

impl State {
    /// Lets a guest wait. At the bound the oldest of the same address goes, or else of whoever has the most there.
    fn queue(&mut self, address: IpAddr, guest: Guest) {
        if self.waiting >= limits::NEWCOMERS_WAITING {
            let own = self.addresses.get_mut(&address).filter(|here| !here.waiting.is_empty());
            let of = match own {
                Some(here) => Some(here),
                None => self.addresses.values_mut().max_by_key(|there| there.waiting.len()),
            };
            let Some(there) = of.filter(|there| !there.waiting.is_empty()) else {
                guest.dismissed.cancel();
                return;
            };
            there.waiting.remove(0).dismissed.cancel();
            self.waiting -= 1;
        }
        self.addresses.entry(address).or_default().waiting.push(guest);
        self.waiting += 1;
    }

    /// Takes a place from who was silent longest: at an address that has all it may have there, else at the one that has
    /// the most, if that is more than this one. False if nobody was silent for long enough.
    fn make_room(&mut self, address: IpAddr, now: Instant) -> bool {
        let silent = |guest: &Guest| now.saturating_duration_since(guest.traffic.read_at());
        let longest = |there: &Address| {
            let silences = there.inside.iter().map(silent).enumerate();
            silences
                .max_by_key(|(_, silence)| *silence)
                .filter(|(_, silence)| *silence > limits::NEWCOMER_GRACE)
        };
        let own = self.addresses.get(&address).map_or(0, |here| here.inside.len());
        let of = if own >= limits::NEWCOMERS_PER_ADDRESS {
            Some(address)
        } else {
            let able = self.addresses.iter().filter(|(_, there)| longest(there).is_some());
            let fullest = able.max_by_key(|(_, there)| there.inside.len());
            fullest.filter(|(_, there)| there.inside.len() > own).map(|(of, _)| *of).or(Some(address))
        };
        let Some(there) = of.and_then(|of| self.addresses.get_mut(&of)) else { return false };
        let Some((at, _)) = longest(there) else { return false };
        there.inside.swap_remove(at).dismissed.cancel();
        self.inside -= 1;
        true
    }

    /// Calls in who waits at an address, the newest first, as far as there is room.
    fn settle(&mut self, address: IpAddr, now: Instant) {
        loop {
            let Some(here) = self.addresses.get(&address).filter(|here| !here.waiting.is_empty()) else {
                return;
            };
            let full = here.inside.len() >= limits::NEWCOMERS_PER_ADDRESS || self.inside >= limits::NEWCOMERS;
            if full && !self.make_room(address, now) {
                return;
            }
            let Some(here) = self.addresses.get_mut(&address) else { return };
            if let Some(guest) = here.waiting.pop() {
                guest.called.cancel();
                here.inside.push(guest);
                self.waiting -= 1;
                self.inside += 1;
            }
        }
    }

    fn leave(&mut self, address: IpAddr, id: u64, now: Instant) {
        let Some(here) = self.addresses.get_mut(&address) else { return };
        if let Some(at) = here.inside.iter().position(|guest| guest.id == id) {
            here.inside.swap_remove(at);
            self.inside -= 1;
        }
        if let Some(at) = here.waiting.iter().position(|guest| guest.id == id) {
            here.waiting.remove(at);
            self.waiting -= 1;
        }
        if here.inside.is_empty() && here.waiting.is_empty() {
            self.addresses.remove(&address);
        }
        if self.waiting > 0 {
            self.settle(address, now);
            // Room in all may be what others wait for: the newest of them is next.
            let newest =
                self.addresses.iter().filter_map(|(ip, there)| Some((there.waiting.last()?.id, *ip))).max();
            if let Some((_, ip)) = newest {
                self.settle(ip, now);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

    use std::time::Duration;

    use super::*;

    fn address(last: u8) -> IpAddr {
        IpAddr::from([127, 0, 0, last])
    }

    /// Fault row 36: silent peers of one address make room for a later one of the same address; others are not
    /// touched at all.
    #[tokio::test(start_paused = true)]
    async fn silent_ones_make_room() {
        let lobby = Arc::new(Lobby::default());
        let mut silent = Vec::new();
        for _ in 0..limits::NEWCOMERS_PER_ADDRESS {
            silent.push(lobby.enter(address(1), Traffic::new()).await.unwrap());
        }
        let other = lobby.enter(address(2), Traffic::new()).await;
        assert!(other.is_some());
        let started = tokio::time::Instant::now();
        let late = lobby.enter(address(1), Traffic::new()).await.unwrap();
        assert!(started.elapsed() <= Duration::from_millis(1_500));
        assert_eq!(silent.iter().filter(|place| place.dismissed.is_cancelled()).count(), 1);
        drop((silent, late, other));
        assert_eq!(lobby.count(), (0, 0));
        assert!(lobby.state().addresses.is_empty());
    }

    /// Silent peers of many addresses hold all places, and all of one host's network count as one: whoever comes from
    /// elsewhere gets a place as soon as they have been silent for long enough, and finds room to wait.
    #[tokio::test(start_paused = true)]
    async fn silent_ones_of_many_addresses_make_room_for_others() {
        let lobby = Arc::new(Lobby::default());
        let crowd = |host: usize, place: usize| -> IpAddr {
            format!("2001:db8:0:{host:x}::{place:x}").parse().unwrap()
        };
        let mut silent = Vec::new();
        let hosts = limits::NEWCOMERS / limits::NEWCOMERS_PER_ADDRESS;
        for host in 0..hosts {
            for place in 0..limits::NEWCOMERS_PER_ADDRESS {
                silent.push(lobby.enter(crowd(host, place), Traffic::new()).await.unwrap());
            }
        }
        let mut waiting = tokio::task::JoinSet::new();
        for number in 0..limits::NEWCOMERS_WAITING + 10 {
            let (lobby, address) = (lobby.clone(), crowd(number % hosts, number));
            waiting.spawn(async move { lobby.enter(address, Traffic::new()).await.is_some() });
        }
        while lobby.count().1 < limits::NEWCOMERS_WAITING {
            tokio::task::yield_now().await;
        }
        let started = tokio::time::Instant::now();
        let real = lobby.enter(address(9), Traffic::new()).await;
        assert!(real.is_some() && started.elapsed() <= Duration::from_millis(1_500));
        waiting.abort_all();
        while waiting.join_next().await.is_some() {}
        drop((real, silent));
        assert_eq!(lobby.count(), (0, 0));
    }

    /// Peers that are busy talking keep their places; the newcomer gives up after 5 s and leaves nothing behind.
    #[tokio::test(start_paused = true)]
    async fn busy_ones_keep_their_places() {
        let lobby = Arc::new(Lobby::default());
        let traffic = Traffic::new();
        let mut busy = Vec::new();
        for _ in 0..limits::NEWCOMERS_PER_ADDRESS {
            busy.push(lobby.enter(address(1), traffic.clone()).await.unwrap());
        }
        let talk = async {
            loop {
                sleep(Duration::from_millis(100)).await;
                traffic.read_now();
            }
        };
        let late = tokio::select! {
            late = lobby.enter(address(1), Traffic::new()) => late,
            () = talk => None,
        };
        assert!(late.is_none());
        assert_eq!(lobby.count(), (limits::NEWCOMERS_PER_ADDRESS, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn the_newest_is_next_and_the_crowd_is_bounded() {
        let lobby = Arc::new(Lobby::default());
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..limits::NEWCOMERS_WAITING + 100 {
            let lobby = lobby.clone();
            tasks.spawn(async move {
                let place = lobby.enter(address(1), Traffic::new()).await;
                if let Some(place) = place {
                    place.dismissed.cancelled().await;
                }
            });
        }
        while lobby.count() != (limits::NEWCOMERS_PER_ADDRESS, limits::NEWCOMERS_WAITING) {
            tokio::task::yield_now().await;
        }
        let started = tokio::time::Instant::now();
        let real = lobby.enter(address(1), Traffic::new()).await;
        assert!(real.is_some() && started.elapsed() <= Duration::from_millis(1_500));
        tasks.abort_all();
        while tasks.join_next().await.is_some() {}
        drop(real);
        assert_eq!(lobby.count(), (0, 0));
    }
}
