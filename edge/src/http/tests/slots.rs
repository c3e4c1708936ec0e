//! What holds a slot or a place in the queue gives it back, however it ends.

use std::collections::VecDeque;
use std::time::Instant;

use super::rig::{Rig, until};
use crate::core::admission::Class;
use crate::shell::dispatch::{Admitted, Ask, KeyNumber, Outcome, Slot, Waiting};

/// What a handler may have in its hands when it is over.
enum Held {
    Slot(Slot),
    Waiting(Waiting),
}

#[tokio::test]
async fn row_61_ten_thousand_handlers_that_end_in_every_way_leave_the_capacity_exact() {
    let (rig, node) = Rig::with_node(8).await;
    let model = rig.dispatch.resolve("m").unwrap().model;
    let mut held: VecDeque<Held> = VecDeque::new();
    for round in 0..10_000u32 {
        let mut ask = Ask::new(model, KeyNumber(round % 5), Class::default());
        ask.prompt_bytes = u64::from(round % 7) * 1_000;
        ask.events = round % 2 == 0;
        match rig.dispatch.admit(Instant::now(), &ask) {
            Admitted::Slot(slot) => held.push_back(Held::Slot(slot)),
            Admitted::Waiting(waiting) => held.push_back(Held::Waiting(waiting)),
            Admitted::Refused(refusal) => panic!("{refusal:?}"),
        }
        let full = held.len() > 12;
        let Some(over) = held.pop_front().filter(|_| full) else { continue };
        match (over, round % 5) {
            // The handler panics with it in its hands.
            (over, 0) => {
                let ended = tokio::spawn(async move {
                    let _over = over;
                    if round % 5 == 0 {
                        std::panic::resume_unwind(Box::new("a handler's panic"));
                    }
                })
                .await;
                assert!(ended.is_err());
            }
            // Its task is aborted.
            (over, 1) => {
                let task = tokio::spawn(async move {
                    let _over = over;
                    std::future::pending::<()>().await;
                });
                tokio::task::yield_now().await;
                task.abort();
                assert!(task.await.is_err());
            }
            // It never looks at what it was given.
            (over @ Held::Waiting(_), 2) => drop(over),
            (Held::Waiting(waiting), _) => drop(waiting.await.unwrap()),
            (Held::Slot(mut slot), _) => slot.streaming(Instant::now(), Outcome::Answered),
        }
        let figures = rig.dispatch.figures(&node.provider).unwrap();
        assert!(figures.in_flight <= 8);
        assert_eq!(figures.in_flight + figures.queued, u32::try_from(held.len()).unwrap());
    }
    held.clear();
    until("nothing is held", || rig.counts().in_flight() == 0 && rig.counts().waiting == 0).await;
    assert_eq!(rig.in_flight(&node), 0);
}
