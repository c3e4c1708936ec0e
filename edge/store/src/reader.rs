//! The reader thread: reads never wait for a sync that is under way.
//!
//! Owns the order of reads. Invariants: a read sees every commit that was answered before it was asked; none lasts
//! longer than its own answer, so that no old state is held on disk.

use std::sync::Arc;

use tokio::sync::mpsc;

use crate::backend::{Failure, Reader, View};
use crate::writer::Job;

pub(crate) type Look = Box<dyn FnOnce(Result<&dyn View, Failure>) + Send>;

/// Answers until nobody can ask any more.
pub(crate) fn run(reader: &Arc<dyn Reader>, mut looks: mpsc::Receiver<Look>, writer: &mpsc::Sender<Job>) {
    while let Some(look) = looks.blocking_recv() {
        let mut look = Some(look);
        let result = reader.read(&mut |view| {
            if let Some(look) = look.take() {
                look(Ok(view));
            }
            Ok(())
        });
        if let (Err(failure), Some(look)) = (result, look) {
            look(Err(failure));
        }
        if !reader.is_sound() {
            // The writer opens the file anew. With a full queue it comes to that by itself.
            let _ = writer.try_send(Job::Mend);
        }
    }
}
