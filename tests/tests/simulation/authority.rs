//! What must be true of a change of the site's authority after each step.

use umbel_edge::simulation::AuthorityView;

use super::invariants::{Found, must};
use super::world::World;

impl World {
    // Each step follows on the one before, as it was told to nodes.
    pub(crate) fn authority_changes(&mut self) -> Found {
        let Some(edge) = &self.edge.process else { return Ok(()) };
        let view = edge.authority();
        let trusted = if view.phase == "settled" { 1 } else { 2 };
        must(view.trusted.len() == trusted, "two authorities are trusted only in an overlap", || {
            format!("{view:?}")
        })?;
        let keepers = &mut self.keepers;
        must(!keepers.aborted.contains(&view.signing), "an aborted change leaves the old authority", || {
            format!("{view:?}, aborted were {:?}", keepers.aborted)
        })?;
        if keepers.seen.as_ref() == Some(&view) {
            return Ok(());
        }
        let Some(before) = keepers.seen.replace(view.clone()) else { return Ok(()) };
        follows(&before, &view)?;
        if before.phase == "begun" && view.phase == "settled" {
            keepers.aborted.extend(before.next);
        }
        Ok(())
    }

    // Whoever was told whom to trust gets in, unless a list named it before the change ended all the same.
    pub(crate) fn is_not_locked_out(&self, number: usize, id: &str) -> Found {
        let (Some(edge), Some(node)) = (&self.edge.process, &self.hosts[number].process) else {
            return Ok(());
        };
        let (trusts, vouching) = (node.trusts(), edge.vouching());
        let believes = trusts.iter().any(|one| vouching.contains(one));
        must(
            believes || self.keepers.left_behind.contains(id),
            "a change of authority locks nobody out",
            || format!("node {number} trusts {trusts:?}, for its edge vouch {vouching:?}"),
        )
    }
}

fn follows(before: &AuthorityView, now: &AuthorityView) -> Found {
    let same = before.signing == now.signing;
    match (before.phase, now.phase) {
        ("begun", "settled") => {
            must(same, "an aborted change leaves the old authority", || format!("{now:?} after {before:?}"))
        }
        ("begun", "switched") => {
            let told =
                before.next.as_ref() == Some(&now.signing) && now.previous.as_ref() == Some(&before.signing);
            must(told, "an authority signs only after it was told", || format!("{now:?} after {before:?}"))
        }
        _ => must(same, "an authority signs only after it was told", || format!("{now:?} after {before:?}")),
    }
}
