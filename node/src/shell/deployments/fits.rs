//! Whether an engine of a deployment can run on this host now.
//!
//! Owns the checks that need the whole host: room, files, GPUs, memory. Leaves a profile's own to `engines::adapter`. Invariant:
//! nothing is changed by looking.

use std::sync::Arc;

use tokio::task::spawn_blocking;
use umbel_contracts::{
    causes::Cause,
    config::ByteSize,
    proto::node::JobFailure,
    settings::{ENGINES_MAX, NAMES_BYTES_MAX},
};

use super::Deployments;
use crate::{
    core::deployments::{Kept, Refusal, shared_gpu},
    engines::{adapter, model_files},
};

impl Deployments {
    /// Bounds of a node's engines together.
    pub(super) fn room(&self, wanted: &Kept) -> Result<(), Refusal> {
        let mut names = self.engines.names();
        names.retain(|(name, _)| *name != wanted.engine);
        if names.len() >= ENGINES_MAX {
            let says = format!("this node has {ENGINES_MAX} engines, and takes no more");
            return Err(Refusal::new(Cause::TooManyEngines, "engine", says));
        }
        let own =
            wanted.engine.len() + wanted.model.len() + wanted.aliases.iter().map(String::len).sum::<usize>();
        if names.iter().map(|(_, bytes)| bytes).sum::<usize>() + own > NAMES_BYTES_MAX {
            let says =
                "with these the names of models and aliases of this node are longer than 16 KiB together";
            return Err(Refusal::new(Cause::TooManyEngines, "aliases", says));
        }
        Ok(())
    }

    /// Whether it can run on this host now: programs, files, context, GPUs, memory. Milliseconds, not minutes of loading.
    pub(super) async fn fits(&self, wanted: &Kept) -> Result<(), Refusal> {
        self.gpus_are_free(wanted)?;
        let (grounds, facts) = (self.engines.grounds(), self.engines.facts());
        let (artifacts, kept) = (Arc::clone(&self.artifacts), wanted.clone());
        let checked = spawn_blocking(move || {
            let config = kept.config(&grounds);
            let Some(artifact) = &kept.artifact else {
                adapter::validate(&config, &facts)?;
                return Ok(config.source.process().map_or(0, model_files::weights));
            };
            let found = artifacts.folders(&artifact.repository, &artifact.revision, &artifact.digest);
            let folders = found.map_err(|failure| {
                // Whoever asked learns what is not here any more, and can have it fetched.
                artifacts.look();
                Refusal::new(Cause::ArtifactMissing, "artifact", failure.says)
            })?;
            // More than one root may have it.
            if kept.folder(&grounds).is_some_and(|said| !folders.contains(&said)) {
                artifacts.look();
                let says = "is not where the files of that digest are; acquire them there first";
                return Err(Refusal::new(Cause::ArtifactMissing, "artifact.path", says));
            }
            adapter::validate(&config, &facts).map_err(|refusal| match refusal.code {
                // All of it is here, in its sizes.
                Cause::ArtifactMissing => Refusal { code: Cause::ArtifactUnfit, ..refusal },
                _ => refusal,
            })?;
            Ok(config.source.process().map_or(0, model_files::weights))
        });
        let broken = |_| Err(Refusal::new(Cause::Internal, "", "the check of its files broke off"));
        let weights = checked.await.unwrap_or_else(broken)?;
        self.memory(wanted, weights)
    }

    /// Why whole files are not what an engine takes: they were changed since they came, then they are taken away and fetched
    /// anew, or they never were, which no download mends. Any other failure stays as it is. Reads the model's file.
    pub(super) async fn unfit(&self, failure: JobFailure, wanted: Kept) -> JobFailure {
        if failure.code != Cause::ArtifactUnfit.as_str() || failure.path != "artifact" {
            return failure;
        }
        let (grounds, artifacts) = (self.engines.grounds(), Arc::clone(&self.artifacts));
        let taken_away = spawn_blocking(move || {
            let config = wanted.config(&grounds);
            let model = config.source.process().map(|process| process.model.as_path());
            model.is_some_and(|model| model.is_file() && artifacts.take_away_damaged(model))
        });
        if !taken_away.await.unwrap_or(false) {
            return failure;
        }
        let says = "the model's file is not what was brought here; it is fetched anew";
        Refusal::new(Cause::ArtifactMissing, "artifact", says).into()
    }

    pub(super) fn gpus_are_free(&self, wanted: &Kept) -> Result<(), Refusal> {
        let gpus = self.watch.inventory().gpus;
        let lost = self.watch.lost();
        for uuid in &wanted.gpus {
            let here = gpus.iter().find(|gpu| {
                gpu.uuid == *uuid || gpu.mig_instances.iter().any(|instance| instance.uuid == *uuid)
            });
            let missing = |says: String| Refusal::new(Cause::GpuMissing, "gpu_uuids", says);
            let Some(gpu) = here else { return Err(missing(format!("this node has no GPU {uuid}"))) };
            // A part goes with the whole.
            if lost.contains(&gpu.uuid) {
                return Err(missing(format!("GPU {uuid} does not answer")));
            }
        }
        let given = self.engines.given_gpus();
        let others = given.iter().filter(|(engine, _)| *engine != wanted.engine);
        match shared_gpu(&wanted.gpus, others.map(|(engine, gpus)| (engine.as_str(), gpus.as_slice()))) {
            Some((uuid, engine)) => Err(Refusal::new(
                Cause::GpuInUse,
                "gpu_uuids",
                format!("GPU {uuid} is given to engine {engine}"),
            )),
            None => Ok(()),
        }
    }

    /// The weights have to fit into what is free: the cache comes on top, and only the engine knows how large it makes it.
    fn memory(&self, wanted: &Kept, weights: u64) -> Result<(), Refusal> {
        let says = |needs: u64, free: u64, of: &str| {
            let (needs, free) = (ByteSize(needs).rounded(), ByteSize(free).rounded());
            format!("the model's weights need {needs}, and {of} has {free} free")
        };
        let engine = self.engines.by_name(&wanted.engine);
        if weights == 0 || engine.is_some() {
            return Ok(());
        }
        if wanted.gpus.is_empty() {
            let all = self.watch.inventory().memory_bytes;
            if all > 0 && weights > all {
                return Err(Refusal::new(Cause::Memory, "artifact", says(weights, all, "this host")));
            }
            return Ok(());
        }
        let each = weights / u64::try_from(wanted.gpus.len()).unwrap_or(1).max(1);
        for gpu in self.watch.shown().iter().filter(|gpu| wanted.gpus.contains(&gpu.facts.uuid)) {
            let (Some(all), Some(used)) = (gpu.telemetry.memory_total_bytes, gpu.telemetry.memory_used_bytes)
            else {
                continue;
            };
            let free = all.saturating_sub(used);
            if each > free {
                let of = format!("GPU {}", gpu.facts.uuid);
                return Err(Refusal::new(Cause::Memory, "gpu_uuids", says(each, free, &of)));
            }
        }
        Ok(())
    }
}
