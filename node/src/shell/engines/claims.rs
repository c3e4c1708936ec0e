//! Which engine has which GPU: from the check before its start until nothing of it is left there.
//!
//! Owns the claims; leaves where an engine belongs to the edge and the node's file. Invariants: an engine is started only on
//! GPUs that no other engine of this node has or still holds memory of; only its driver takes them for it and gives them back,
//! so that nothing is taken for one that is gone.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
};

use super::Host;
use crate::core::deployments::shared_gpu;

/// GPUs by the name of their engine.
#[derive(Debug, Default)]
pub(super) struct Claims(Mutex<BTreeMap<String, Vec<String>>>);

impl Host {
    /// Takes GPUs for an engine, in the place of those that it had.
    ///
    /// # Errors
    /// Which one another engine has: nothing is taken then.
    pub(super) fn claim(&self, engine: &str, gpus: &[String]) -> Result<(), String> {
        let mut claims = self.claims.0.lock().unwrap_or_else(PoisonError::into_inner);
        let others = claims.iter().filter(|(name, _)| *name != engine);
        let others = others.map(|(name, gpus)| (name.as_str(), gpus.as_slice()));
        if let Some((gpu, other)) = shared_gpu(gpus, others) {
            return Err(format!("GPU_IN_USE: GPU {gpu} is engine {other}'s until nothing of that is left"));
        }
        claims.insert(engine.to_owned(), gpus.to_vec());
        Ok(())
    }

    /// An engine that runs already has these, whoever else wants them.
    pub(super) fn claimed(&self, engine: &str, gpus: &[String]) {
        let mut claims = self.claims.0.lock().unwrap_or_else(PoisonError::into_inner);
        claims.insert(engine.to_owned(), gpus.to_vec());
    }

    /// Nothing of an engine is left.
    pub(super) fn unclaim(&self, engine: &str) {
        self.claims.0.lock().unwrap_or_else(PoisonError::into_inner).remove(engine);
    }
}

#[cfg(test)]
mod tests {
    use std::{path::Path, sync::Arc};

    use crate::{
        Config,
        shell::{
            engines::{Engines, Inheritance},
            gpu::Holders,
            state::State,
        },
    };

    /// A GPU is one engine's until nothing of that is left; what cannot be taken whole is not taken in part, and what one has it may
    /// change for others.
    #[tokio::test]
    async fn row_83_a_gpu_is_one_engines() {
        let dir = tempfile::tempdir().unwrap();
        let config =
            Config::parse("[node]\nstate_dir = \"/s\"\n", Path::new("/etc/umbel/node.toml")).unwrap();
        let state = Arc::new(State::open(&dir.path().join("state")).unwrap());
        let engines =
            Engines::start(&config, &state, &Arc::new(Holders::new(false)), &[], Inheritance::default());
        let (host, gpus) =
            (&engines.host, |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>());
        host.claim("a", &gpus(&["GPU-1", "GPU-2"])).unwrap();
        let refused = host.claim("b", &gpus(&["GPU-3", "GPU-2"])).unwrap_err();
        assert_eq!(refused, "GPU_IN_USE: GPU GPU-2 is engine a's until nothing of that is left");
        host.claim("c", &gpus(&["GPU-3"])).unwrap();
        host.claim("a", &gpus(&["GPU-1"])).unwrap();
        host.claim("b", &gpus(&["GPU-2"])).unwrap();
        host.unclaim("a");
        host.claim("b", &gpus(&["GPU-1", "GPU-2"])).unwrap();
        // One that runs already has what it has, whoever wants it.
        host.claimed("d", &gpus(&["GPU-4"]));
        assert!(host.claim("b", &gpus(&["GPU-4"])).unwrap_err().contains("engine d's"));
    }
}
