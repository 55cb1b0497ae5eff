//! Status of a running target (`switchyard serve --control`): its volumes, counters, and the time of requests by layer.

use crate::control::api::{SpanTimes, Spans, Status, Volume};
use crate::control::server::{Server, bind};
use crate::events;
use crate::operator::core_counters;
use axum::routing::get;
use axum::{Json, Router};
use base::BlockOp;
use runtime::{CoreHandle, SPAN_LAYERS, SpanRow};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;
use uuid::Uuid;

/// The [`Status::role`] of a target.
pub const ROLE: &str = "target";

/// A volume as a target tells of it.
#[derive(Clone, Debug)]
pub struct Served {
    /// Its name.
    pub name: String,
    /// Its size.
    pub size_bytes: u64,
    /// Its UUID, by which NVMe hosts know it.
    pub uuid: Uuid,
}

/// Serves the status of a target at `address`.
pub fn tell(address: SocketAddr, cores: &Arc<Vec<CoreHandle>>, volumes: &[Served]) -> anyhow::Result<Server> {
    let listener = bind(address)?;
    let (cores, volumes, start) = (Arc::clone(cores), volumes.to_vec(), Instant::now());
    // Nothing of it waits for a core.
    let status = move || {
        let status = status(&cores, &volumes, start);
        async { Json(status) }
    };
    let routes = Router::new()
        .route("/", get(async || "Switchyard: /v1/status, /v1/events\n"))
        .route("/v1/status", get(status))
        .merge(events::routes());
    Server::with(listener, routes)
}

fn status(cores: &[CoreHandle], volumes: &[Served], start: Instant) -> Status {
    let volumes = volumes.iter().zip(0..).map(|(volume, id)| Volume {
        name: volume.name.clone(),
        id,
        size_bytes: volume.size_bytes,
        uuid: Some(volume.uuid),
        state: "ready".to_owned(),
        ..Volume::default()
    });
    Status {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        role: ROLE.to_owned(),
        pid: std::process::id(),
        uptime_s: start.elapsed().as_secs_f64(),
        volumes: volumes.collect(),
        cores: cores.iter().map(|core| core_counters(core.stats())).collect(),
        spans: cores.iter().flat_map(CoreHandle::spans).map(spans).collect(),
        ..Status::default()
    }
}

fn spans(row: SpanRow) -> Spans {
    let times = |name: &str, times: runtime::SpanTimes| SpanTimes {
        name: name.to_owned(),
        sum_ns: times.sum_ns,
        counts: times.counts,
    };
    let layers = SPAN_LAYERS.into_iter().zip(row.layers);
    Spans {
        action: match row.op {
            BlockOp::Read => "read",
            BlockOp::Write => "write",
            BlockOp::Flush | BlockOp::Trim | BlockOp::WriteZeroes | BlockOp::Status => "sync",
        }
        .to_owned(),
        bytes_max: row.bytes_max,
        layers: layers.map(|(name, of)| times(name, of)).collect(),
        total: times("total", row.total),
    }
}
