//! Names that nodes are being given, by a rename or with their enrollment.
//!
//! Owns the reservation; leaves which name is free to `core/registry`. Invariant: between the judging of a name and the
//! row that has it nobody else takes it.

use umbel_wire::{Error, NodeId};

use crate::shell::site::Site;

/// A name that nobody else can take meanwhile.
pub(crate) struct Name<'a> {
    site: &'a Site,
    name: String,
}

impl<'a> Name<'a> {
    /// This one.
    ///
    /// # Errors
    /// CONFLICT `NAME_TAKEN`.
    pub(crate) fn reserve(site: &'a Site, node: NodeId, name: &str) -> Result<Self, Error> {
        site.change(|registry| registry.reserve_name(node, name))?;
        Ok(Self { site, name: name.to_owned() })
    }

    /// This one, or one like it that is free.
    pub(crate) fn reserve_like(site: &'a Site, node: NodeId, like: &str) -> Self {
        let name = site.change(|registry| registry.reserve_like(node, like));
        Self { site, name }
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.name
    }
}

impl Drop for Name<'_> {
    fn drop(&mut self) {
        self.site.change(|registry| registry.release_name(&self.name));
    }
}
