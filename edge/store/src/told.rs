//! What a store's threads tell its handles without being asked, and what handles tell the threads.
//!
//! Owns shared figures only: health, the audit's newest entry, counts, how much is kept. Nobody waits for any of it.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

use crate::audit::AuditHead;
use crate::chain::Retention;
use crate::handle::Health;
use crate::limits;
use crate::owed::Debts;
use crate::times::Times;
use crate::writer::now_unix_ms;

/// A record that stands in the store and cannot be used. It is left where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreadable {
    /// Its table.
    pub table: String,
    /// Its key.
    pub key: String,
    /// Why.
    pub cause: String,
}

pub(crate) struct Told {
    pub(crate) health: watch::Sender<Health>,
    pub(crate) head: watch::Sender<AuditHead>,
    pub(crate) debts: Debts,
    // Audit entries that could not even be kept for later; the next one that can be written says so.
    pub(crate) lost: AtomicU64,
    // Durable transactions since the start.
    pub(crate) transactions: AtomicU64,
    // How long they took.
    pub(crate) times: Times,
    pub(crate) copying: AtomicBool,
    // Since when it takes no writes; 0 while it does.
    pub(crate) fell: AtomicI64,
    entries: AtomicU64,
    keep_ms: AtomicI64,
    unreadable: Mutex<BTreeMap<(String, String), String>>,
    // The thread that ended unasked.
    broke: watch::Sender<Option<&'static str>>,
}

impl Told {
    pub(crate) fn new(health: Health, head: AuditHead) -> Self {
        let told = Self {
            health: watch::Sender::new(health),
            head: watch::Sender::new(head),
            debts: Debts::default(),
            lost: AtomicU64::new(0),
            transactions: AtomicU64::new(0),
            times: Times::default(),
            copying: AtomicBool::new(false),
            fell: AtomicI64::new(0),
            entries: AtomicU64::new(0),
            keep_ms: AtomicI64::new(0),
            unreadable: Mutex::default(),
            broke: watch::Sender::new(None),
        };
        told.keep(limits::AUDIT_KEPT, limits::AUDIT_KEPT_FOR);
        told
    }

    pub(crate) fn keep(&self, entries: u64, time: Duration) {
        self.entries.store(entries.max(1), Ordering::SeqCst);
        self.keep_ms.store(i64::try_from(time.as_millis()).unwrap_or(i64::MAX), Ordering::SeqCst);
    }

    /// Runs a thread's work; its panic is told, and the store counts as one that cannot be written.
    pub(crate) fn attend(&self, thread: &'static str, work: impl FnOnce()) {
        if catch_unwind(AssertUnwindSafe(work)).is_err() {
            let cause = format!("its thread `{thread}` broke off by a defect of the program: start it again");
            tracing::error!(thread, "a thread of the store broke off");
            self.fell.store(now_unix_ms(), Ordering::SeqCst);
            self.health.send_replace(Health::ReadOnly(cause));
            self.broke.send_replace(Some(thread));
        }
    }

    /// Waits for the end of a thread that was not asked for; its name.
    pub(crate) async fn broke(&self) -> &'static str {
        let mut broke = self.broke.subscribe();
        loop {
            if let Some(thread) = *broke.borrow_and_update() {
                return thread;
            }
            // The sender is held by this.
            if broke.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }

    pub(crate) fn retention(&self) -> Retention {
        Retention {
            entries: self.entries.load(Ordering::SeqCst),
            keep_ms: self.keep_ms.load(Ordering::SeqCst),
        }
    }

    pub(crate) fn unreadable(&self, table: &str, key: &str, cause: &str) {
        let mut told = self.unreadable.lock().unwrap_or_else(PoisonError::into_inner);
        let name = (table.to_owned(), key.to_owned());
        if told.contains_key(&name) || told.len() >= limits::UNREADABLE_TOLD {
            return;
        }
        tracing::error!(table, key, cause, "a record of the store cannot be used and is passed over");
        told.insert(name, cause.to_owned());
    }

    pub(crate) fn all_unreadable(&self) -> Vec<Unreadable> {
        let told = self.unreadable.lock().unwrap_or_else(PoisonError::into_inner);
        told.iter()
            .map(|((table, key), cause)| Unreadable {
                table: table.clone(),
                key: key.clone(),
                cause: cause.clone(),
            })
            .collect()
    }
}
