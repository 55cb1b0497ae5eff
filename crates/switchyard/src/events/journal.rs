//! The journal of this process: the last events of all its hosts, and one line each on standard error.
//!
//! `SWITCHYARD_LOG` says which lines: `error`, `warn`, `info` (the default), `debug` or `off`.

use super::text;
use base::event::{Event, Events, Kind, Level, Page, Source};
use runtime::{Teller, Told};
use std::sync::mpsc::Receiver;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};
use tokio::sync::watch;
use tracing::level_filters::LevelFilter;

/// Events of each host that are kept, of those that are routine and of the others; less than 100 KiB a host.
const KEPT: usize = 512;
/// Events on their way from the cores: far more than a burst of a moment has.
const ON_THE_WAY: usize = 4096;
/// Which lines are written to the log.
const LOG_VARIABLE: &str = "SWITCHYARD_LOG";

struct Journal {
    events: Mutex<Events>,
    teller: Teller,
    /// The number of the newest event, for followers to wait on.
    newest: watch::Sender<u64>,
    /// When this journal began, which tells it from that of another start.
    began: SystemTime,
    thread: Mutex<Option<JoinHandle<()>>>,
}

static JOURNAL: OnceLock<Journal> = OnceLock::new();

fn journal() -> &'static Journal {
    let mut receiver = None;
    let journal = JOURNAL.get_or_init(|| {
        let (teller, end) = Teller::new(ON_THE_WAY);
        receiver = Some(end);
        Journal {
            events: Mutex::new(Events::new(KEPT)),
            teller,
            newest: watch::Sender::new(0),
            began: SystemTime::now(),
            thread: Mutex::new(None),
        }
    });
    if let Some(receiver) = receiver {
        begin_log();
        let keeper = std::thread::Builder::new().name("events".into());
        // Without the thread events are lost, which `/metrics` counts; the rack works.
        let thread = keeper.spawn(move || keep(journal, &receiver)).ok();
        *locked(&journal.thread) = thread;
    }
    journal
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn begin_log() {
    // An empty text would be read as `error`.
    let wanted = std::env::var(LOG_VARIABLE)
        .ok()
        .filter(|wanted| !wanted.is_empty());
    let level = wanted.and_then(|wanted| wanted.parse().ok());
    let level = level.unwrap_or(LevelFilter::INFO);
    tracing_subscriber::fmt()
        .with_max_level(level)
        .with_target(false)
        .with_ansi(false)
        .with_writer(std::io::stderr)
        .log_internal_errors(false)
        .init();
}

/// Keeps what comes until [`end`].
fn keep(journal: &Journal, receiver: &Receiver<Option<Told>>) {
    while let Ok(Some(Told { at, source, kind })) = receiver.recv() {
        let recorded = locked(&journal.events).record(at, source, kind);
        if let Some(event) = recorded {
            log(&event);
            journal.newest.send_replace(event.sequence);
        }
    }
}

fn log(event: &Event) {
    let (source, name, text) = (event.source, event.kind.name(), text::sentence(&event.kind));
    match event.kind.level() {
        Level::Debug => tracing::debug!("{source} {name}: {text}"),
        Level::Info => tracing::info!("{source} {name}: {text}"),
        Level::Warn => tracing::warn!("{source} {name}: {text}"),
        Level::Error => tracing::error!("{source} {name}: {text}"),
    }
}

/// For the cores.
pub fn teller() -> Teller {
    journal().teller.clone()
}

/// Tells of an event that happens now.
pub fn tell(source: Source, kind: Kind) {
    journal().teller.tell(source, kind);
}

/// Writes what is on its way; later events are lost. Nothing happens if none was told.
pub fn end() {
    let Some(journal) = JOURNAL.get() else { return };
    journal.teller.end();
    if let Some(thread) = locked(&journal.thread).take() {
        let _ = thread.join();
    }
}

/// How often each kind happened, by host.
pub fn counts() -> Vec<(Source, &'static str, u64)> {
    let events = locked(&journal().events);
    events
        .counts()
        .map(|(source, kind, count)| (source, kind.name, count))
        .collect()
}

/// Events that found no room on their way to the journal.
pub fn lost() -> u64 {
    journal().teller.lost()
}

/// The events after number `since`, at most `count`; waits for one if there is none.
pub(super) async fn after(since: u64, count: usize, wait: Duration) -> (Page, SystemTime) {
    let journal = journal();
    let mut newest = journal.newest.subscribe();
    let page = || locked(&journal.events).after(since, count);
    let mut found = page();
    if found.events.is_empty() && found.missed == 0 && !wait.is_zero() {
        let newer = newest.wait_for(|newest| *newest > since);
        // Nothing new in this time is an answer, too.
        let _ = tokio::time::timeout(wait, newer).await;
        found = page();
    }
    (found, journal.began)
}
