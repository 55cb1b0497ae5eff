//! Events as `/v1/events` answers them.

use super::{text, time};
use base::event::{self, Value};
use serde::{Deserialize, Serialize};
use serde_json::{Map, json};
use std::time::{SystemTime, UNIX_EPOCH};

/// Some events.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Page {
    /// When this process began to keep events, in ms of Unix time. In another start the numbers begin anew.
    pub began_ms: u64,
    /// The number to ask on from.
    pub next: u64,
    /// Events before `next` that are gone.
    pub missed: u64,
    /// The oldest first.
    pub events: Vec<Event>,
}

/// Something that happened.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Event {
    /// Its number in this process.
    pub sequence: u64,
    /// When it happened first.
    pub time: String,
    /// `debug`, `info`, `warn` or `error`.
    pub level: String,
    /// The host that tells of it.
    pub source: String,
    /// The kind.
    pub name: String,
    /// Fields of the kind.
    pub fields: Map<String, serde_json::Value>,
    /// How often it happened again.
    #[serde(default)]
    pub repeats: u32,
    /// When it happened last, if it did again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_time: Option<String>,
    /// A sentence.
    pub text: String,
}

impl Page {
    /// As the API tells it.
    pub fn new(page: &event::Page, began: SystemTime) -> Self {
        let unix = began.duration_since(UNIX_EPOCH).unwrap_or_default();
        Self {
            began_ms: unix.as_millis() as u64,
            next: page.next,
            missed: page.missed,
            events: page.events.iter().map(Event::new).collect(),
        }
    }
}

impl Event {
    fn new(event: &event::Event) -> Self {
        let mut fields = Map::new();
        event.kind.fields(&mut |name, value| {
            let (name, value) = match value {
                Value::Number(number) => (name.to_owned(), json!(number)),
                Value::Name(reason) => (name.to_owned(), json!(reason)),
                Value::Host(addr) => (name.to_owned(), json!(addr.to_string())),
                Value::Client(ip) => (name.to_owned(), json!(ip.to_string())),
                Value::Time(time) => (format!("{name}_s"), json!(time.as_secs_f64())),
            };
            fields.insert(name, value);
        });
        Self {
            sequence: event.sequence,
            time: time::rfc3339(event.at),
            level: event.kind.level().name().to_owned(),
            source: event.source.to_string(),
            name: event.kind.name().to_owned(),
            fields,
            repeats: event.repeats,
            last_time: (event.repeats > 0).then(|| time::rfc3339(event.last_at)),
            text: text::sentence(&event.kind),
        }
    }
}
