//! `/metrics`, written on a thread of its own and sent in pieces: at ten thousand nodes it is over a hundred megabytes,
//! and writing it here would hold up every stream of the site.
//!
//! Leaves what is in it to [`crate::metrics`]. Invariants: the runtime's thread walks no nodes; text that waits for a slow
//! scraper is bounded, and so are the scrapes at once; one that leaves ends the writing.

use std::fmt;
use std::mem;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use umbel_contracts::daemon::exposition::TextFormat;

use super::relay::Broken;
use crate::metrics::Metrics;

/// Bytes of a piece, about.
const PIECE: usize = 64 * 1024;
/// Pieces that wait for the scraper.
const WAITING: usize = 4;
/// Scrapes at once: a pair of collectors. Each holds figures of all nodes; a further one waits.
const AT_ONCE: usize = 2;

/// Places of scrapes.
#[derive(Debug)]
pub(super) struct Scrapes(Arc<Semaphore>);

impl Default for Scrapes {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(AT_ONCE)))
    }
}

/// What the writing thread passes on.
enum Piece {
    More(Bytes),
    /// The last one: without it the text is cut.
    Last(Bytes),
}

/// An exposition: whole, or the rest of it to come.
pub(super) enum Exposition {
    Whole(Bytes),
    Flowing(Pieces),
}

/// Text that comes in pieces.
pub(super) struct Pieces {
    first: Option<Bytes>,
    rest: Receiver<Piece>,
    over: bool,
}

impl Pieces {
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Broken>>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(Ok(first)));
        }
        if self.over {
            return Poll::Ready(None);
        }
        let piece = ready!(self.rest.poll_recv(cx));
        self.over = !matches!(piece, Some(Piece::More(_)));
        Poll::Ready(Some(match piece {
            Some(Piece::More(bytes) | Piece::Last(bytes)) => Ok(bytes),
            None => Err(Broken),
        }))
    }
}

/// Cuts text into pieces and waits where the scraper is slow.
struct Cutter {
    text: String,
    to: Sender<Piece>,
}

impl fmt::Write for Cutter {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.text.push_str(text);
        if self.text.len() < PIECE {
            return Ok(());
        }
        let piece = mem::replace(&mut self.text, String::with_capacity(PIECE + PIECE / 8));
        // Nobody takes it any more: the writing ends.
        self.to.blocking_send(Piece::More(piece.into())).map_err(|_| fmt::Error)
    }
}

impl Scrapes {
    /// Begins to write the metrics; a site of few nodes gives them whole.
    pub(super) async fn take(&self, metrics: Arc<Metrics>, format: TextFormat) -> Result<Exposition, Broken> {
        let place = Arc::clone(&self.0).acquire_owned().await.map_err(|_| Broken)?;
        let (to, mut rest) = channel(WAITING);
        tokio::task::spawn_blocking(move || write(&metrics, format, to, place));
        match rest.recv().await {
            Some(Piece::Last(whole)) => Ok(Exposition::Whole(whole)),
            Some(Piece::More(first)) => {
                Ok(Exposition::Flowing(Pieces { first: Some(first), rest, over: false }))
            }
            None => Err(Broken),
        }
    }
}

fn write(metrics: &Metrics, format: TextFormat, to: Sender<Piece>, _place: OwnedSemaphorePermit) {
    let mut cutter = Cutter { text: String::with_capacity(16 * 1024), to };
    if metrics.encode_to(format, &mut cutter).is_ok() {
        let _ = cutter.to.blocking_send(Piece::Last(cutter.text.into()));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used, reason = "tests")]
    use std::fmt::Write as _;
    use std::future::poll_fn;

    use prometheus_client::collector::Collector;
    use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
    use prometheus_client::metrics::MetricType;
    use prometheus_client::metrics::gauge::ConstGauge;

    use super::*;

    /// So many series; or a failure after them.
    #[derive(Debug)]
    struct Many(usize, bool);

    impl Collector for Many {
        fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
            let mut family = encoder.encode_descriptor("many", "Many", None, MetricType::Gauge)?;
            let mut name = String::new();
            for at in 0..self.0 {
                name.clear();
                write!(name, "{at}")?;
                let labels = [("at", name.as_str())];
                ConstGauge::new(1_i64).encode(family.encode_family(&labels)?)?;
            }
            if self.1 { Err(fmt::Error) } else { Ok(()) }
        }
    }

    /// A writer that breaks off.
    #[derive(Debug)]
    struct Breaks;

    impl Collector for Breaks {
        fn encode(&self, _: DescriptorEncoder<'_>) -> fmt::Result {
            panic!("it breaks off")
        }
    }

    /// A scrape whose writing breaks off is an error at once, and gives its place back.
    #[tokio::test]
    async fn a_writer_that_breaks_off_is_an_error_and_keeps_no_place() {
        let (metrics, scrapes) = (Arc::new(Metrics::new()), Scrapes::default());
        metrics.register(|to| to.register_collector(Box::new(Breaks)));
        for _ in 0..3 * AT_ONCE {
            let scrape = scrapes.take(Arc::clone(&metrics), TextFormat::OpenMetrics);
            let answer = tokio::time::timeout(std::time::Duration::from_secs(20), scrape).await;
            assert!(answer.expect("an answer").is_err());
        }
    }

    fn metrics(many: Many) -> Arc<Metrics> {
        let metrics = Metrics::new();
        metrics.register(|to| to.register_collector(Box::new(many)));
        Arc::new(metrics)
    }

    async fn read(mut pieces: Pieces) -> Result<String, Broken> {
        let mut text = String::new();
        while let Some(piece) = poll_fn(|cx| pieces.poll(cx)).await {
            let piece = piece?;
            assert!(piece.len() < 2 * PIECE);
            text.push_str(std::str::from_utf8(&piece).unwrap());
        }
        Ok(text)
    }

    #[tokio::test]
    async fn a_large_one_comes_in_pieces_and_is_the_same() {
        let (metrics, scrapes) = (metrics(Many(50_000, false)), Scrapes::default());
        let Ok(Exposition::Flowing(pieces)) =
            scrapes.take(Arc::clone(&metrics), TextFormat::OpenMetrics).await
        else {
            unreachable!("it is a megabyte");
        };
        let text = read(pieces).await.unwrap();
        assert!(text.ends_with("# EOF\n") && text == metrics.encode(TextFormat::OpenMetrics));
    }

    #[tokio::test]
    async fn a_small_one_is_whole() {
        let Ok(Exposition::Whole(text)) =
            Scrapes::default().take(metrics(Many(1, false)), TextFormat::OpenMetrics).await
        else {
            unreachable!("it is small");
        };
        assert!(text.ends_with(b"# EOF\n"));
    }

    #[tokio::test]
    async fn a_cut_one_does_not_look_complete() {
        let scrapes = Scrapes::default();
        let Ok(Exposition::Flowing(pieces)) =
            scrapes.take(metrics(Many(50_000, true)), TextFormat::OpenMetrics).await
        else {
            unreachable!("it is a megabyte");
        };
        assert!(read(pieces).await.is_err());
        assert!(scrapes.take(metrics(Many(1, true)), TextFormat::OpenMetrics).await.is_err());
    }

    /// Scrapers that take nothing hold their places; whoever leaves gives its own back.
    #[tokio::test]
    async fn a_scraper_that_leaves_makes_room() {
        let (metrics, scrapes) = (metrics(Many(50_000, false)), Scrapes::default());
        let mut slow = Vec::new();
        for _ in 0..AT_ONCE {
            slow.push(scrapes.take(Arc::clone(&metrics), TextFormat::OpenMetrics).await);
        }
        assert_eq!(scrapes.0.available_permits(), 0);
        slow.pop();
        assert!(matches!(scrapes.take(metrics, TextFormat::OpenMetrics).await, Ok(Exposition::Flowing(_))));
    }
}
