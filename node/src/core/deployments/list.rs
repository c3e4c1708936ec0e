//! The list of a node's engines of deployments, and what a load or an unload makes of it.
//!
//! Owns when an engine is taken, goes on with other figures, or is refused for what is there of its name already. Leaves
//! whether it fits the host, and writing the list, to the shell. Invariant: a name has one entry, and gets a new one only when
//! nothing of its last engine is left.

use umbel_contracts::causes::Cause;

use super::{Kept, Refusal};

/// What is on the host under an engine's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OfName {
    Nothing,
    /// An engine that shall be there.
    Wanted,
    /// An engine whose entry was lost with the list.
    Salvaged,
    /// What is left of one that was unloaded.
    Leaving,
}

/// The list after a load.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Taken {
    /// It says so already.
    Same,
    /// The engine is there, and goes on with other figures.
    Changed(Vec<Kept>),
    /// It is to be started.
    New(Vec<Kept>),
}

/// One more in the list, or one that is taken otherwise.
///
/// # Errors
/// What is there of its name does not go on as that, or has not ended yet.
pub(crate) fn taken(list: &[Kept], wanted: &Kept, there: OfName) -> Result<Taken, Refusal> {
    let known = list.iter().position(|one| one.engine == wanted.engine);
    if let Some(known) = known.and_then(|at| list.get(at)) {
        if known == wanted && there == OfName::Wanted {
            return Ok(Taken::Same);
        }
        if !known.goes_on_as(wanted) {
            let says = "runs with other files, GPUs, name or profile: unload it first, then load it anew";
            return Err(Refusal::new(Cause::EngineDiffers, "engine", format!("{} {says}", wanted.engine)));
        }
    } else if there == OfName::Leaving {
        let says = format!("something of the last {} is left: it is loaded when that is gone", wanted.engine);
        return Err(Refusal::new(Cause::StillLeaving, "engine", says));
    }
    let mut next = list.to_vec();
    match known.and_then(|at| next.get_mut(at)) {
        Some(place) => place.clone_from(wanted),
        None => next.push(wanted.clone()),
    }
    Ok(if known.is_some() || there == OfName::Salvaged { Taken::Changed(next) } else { Taken::New(next) })
}

/// The list without one; nothing if it has no such entry.
pub(crate) fn without(list: &[Kept], engine: &str) -> Option<Vec<Kept>> {
    let next: Vec<Kept> = list.iter().filter(|one| one.engine != engine).cloned().collect();
    (next.len() < list.len()).then_some(next)
}
