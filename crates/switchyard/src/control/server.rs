//! The HTTP server: one thread with a single-threaded tokio beside the cores. Work on the rack waits for cores and
//! nodes, so each request's work runs on tokio's blocking threads.

use super::api::{AddNodes, Create, Exchange, NodePlace, Patch, Problem, STALE};
use super::lead;
use crate::events;
use crate::failure::Failure;
use crate::metrics;
use crate::operator::{Part, Refusal, Told};
use anyhow::Context;
use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::middleware;
use axum::response::{IntoResponse, Response};
use axum::routing::{delete as removal, get, post, put};
use axum::{Json, Router};
use base::{Duration, NodeId};
use host::operator::{NodeChange, Refusal as Refused};
use rack::nodes::NodeError;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;
use tokio::sync::oneshot;

/// A running server; dropping it stops it.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// Binds early, so that an address in use shows before anything is started.
pub fn bind(address: SocketAddr) -> anyhow::Result<TcpListener> {
    let listener = TcpListener::bind(address).map_err(|error| match error.kind() {
        ErrorKind::AddrInUse => {
            let text =
                format!("{address}/tcp is in use: stop its user, or choose another address with --control");
            Failure::InUse(text).into()
        }
        _ => anyhow::Error::from(error).context(format!("cannot listen on {address}/tcp (key control)")),
    })?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

impl Server {
    /// Serves `part` until it is dropped.
    pub fn start(listener: TcpListener, part: Arc<Part>) -> anyhow::Result<Self> {
        Self::with(listener, routes(part))
    }

    /// Serves `routes` until it is dropped.
    pub fn with(listener: TcpListener, routes: Router) -> anyhow::Result<Self> {
        let address = listener.local_addr()?;
        let (stop, stopped) = oneshot::channel();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .max_blocking_threads(8)
            .build()
            .context("cannot start the thread of the control server")?;
        let thread = std::thread::Builder::new()
            .name("control".into())
            .spawn(move || {
                runtime.block_on(async move {
                    let listener = match tokio::net::TcpListener::from_std(listener) {
                        Ok(listener) => listener,
                        Err(error) => {
                            return eprintln!("switchyard: the control server cannot start: {error}");
                        }
                    };
                    let serving = axum::serve(listener, routes).into_future();
                    tokio::select! {
                        result = serving => if let Err(error) = result {
                            eprintln!("switchyard: the control server has stopped: {error}");
                        },
                        _ = stopped => {}
                    }
                });
                runtime.shutdown_background();
            })
            .context("cannot start the thread of the control server")?;
        Ok(Self {
            address,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

type Shared = State<Arc<Part>>;

const RESOURCES: &str = "/v1/status, /v1/events, /v1/volumes, /v1/exchanges, /v1/nodes, /v1/rebalance, /metrics, /healthz, /readyz";

fn routes(part: Arc<Part>) -> Router {
    Router::new()
        .route("/", get(async || format!("Switchyard: {RESOURCES}\n")))
        .route(
            "/v1/status",
            get(async |part: Shared| run(part, |part| part.status()).await),
        )
        .route("/v1/volumes", get(list).post(create))
        .route("/v1/volumes/{name}", get(show).patch(patch).delete(delete))
        .route("/v1/nodes", get(nodes).post(add_nodes))
        .route("/v1/nodes/{id}", removal(remove_node))
        .route("/v1/nodes/{id}/drain", put(drain).delete(stop_drain))
        .route("/v1/nodes/{id}/replacement", put(replace_node))
        .route("/v1/rebalance", put(rebalance).delete(stop_rebalance))
        .route("/v1/exchanges", post(exchange))
        .route("/metrics", get(scrape))
        .route("/healthz", get(health))
        .route("/readyz", get(ready))
        .fallback(async || {
            let error = format!("no such resource: see {RESOURCES}");
            (StatusCode::NOT_FOUND, Json(Problem { error }))
        })
        .merge(events::routes())
        .layer(middleware::from_fn_with_state(Arc::clone(&part), lead::direct))
        .with_state(part)
}

async fn list(part: Shared) -> Response {
    tell(part, |part| part.volumes()).await
}

async fn create(part: Shared, Json(create): Json<Create>) -> Response {
    run(part, move |part| part.create_volume(&create, Duration::ZERO)).await
}

async fn show(part: Shared, Path(name): Path<String>) -> Response {
    tell(part, move |part| part.volume(&name)).await
}

async fn patch(part: Shared, Path(name): Path<String>, Json(patch): Json<Patch>) -> Response {
    run(part, move |part| part.patch_volume(&name, patch)).await
}

async fn delete(part: Shared, Path(name): Path<String>) -> Response {
    run(part, move |part| part.delete_volume(name)).await
}

async fn exchange(part: Shared, Json(exchange): Json<Exchange>) -> Response {
    run(part, move |part| part.exchange(exchange)).await
}

async fn nodes(part: Shared) -> Response {
    tell(part, |part| part.nodes()).await
}

async fn add_nodes(part: Shared, Json(nodes): Json<AddNodes>) -> Response {
    run(part, move |part| part.add_nodes(&nodes)).await
}

async fn remove_node(part: Shared, Path(id): Path<u8>) -> Response {
    run(part, move |part| {
        part.change_nodes(NodeChange::Remove(NodeId(id)))
    })
    .await
}

async fn drain(part: Shared, Path(id): Path<u8>) -> Response {
    run(part, move |part| part.change_nodes(NodeChange::Drain(NodeId(id)))).await
}

async fn stop_drain(part: Shared, Path(id): Path<u8>) -> Response {
    run(part, move |part| {
        part.change_nodes(NodeChange::StopDrain(NodeId(id)))
    })
    .await
}

async fn replace_node(part: Shared, Path(id): Path<u8>, Json(new): Json<NodePlace>) -> Response {
    run(part, move |part| part.replace_node(NodeId(id), &new)).await
}

async fn rebalance(part: Shared) -> Response {
    run(part, |part| part.change_nodes(NodeChange::Rebalance)).await
}

async fn stop_rebalance(part: Shared) -> Response {
    run(part, |part| part.change_nodes(NodeChange::StopRebalance)).await
}

async fn scrape(State(part): Shared) -> Response {
    match tokio::task::spawn_blocking(move || metrics::text(&part)).await {
        Ok(Ok(text)) => {
            let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
            ([(header::CONTENT_TYPE, kind)], text).into_response()
        }
        Ok(Err(refusal)) => answer(refusal),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

/// Whether the process works at all: whoever supervises it starts it again if it does not.
async fn health(State(part): Shared) -> (StatusCode, &'static str) {
    match part.is_running() {
        true => (StatusCode::OK, "ok\n"),
        false => (
            StatusCode::SERVICE_UNAVAILABLE,
            "a core stopped because of a bug\n",
        ),
    }
}

/// Whether it serves: whoever sends clients elsewhere does so while it does not.
async fn ready(State(part): Shared) -> Response {
    match tokio::task::spawn_blocking(move || part.unready()).await {
        Ok(why) if why.is_empty() => "ok\n".into_response(),
        Ok(why) => (StatusCode::SERVICE_UNAVAILABLE, why.join("\n") + "\n").into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

/// As [`run`]; a header warns if the registry does not answer, and what is told is as of before (RFC 7234 §5.5.1).
async fn tell<T: serde::Serialize + Send + 'static>(
    part: Shared,
    work: impl FnOnce(&Part) -> Result<Told<T>, Refusal> + Send + 'static,
) -> Response {
    let (note, noted) = oneshot::channel();
    let mut response = run(part, |part| {
        let told = work(part)?;
        let _ = note.send(told.away);
        Ok(told.what)
    })
    .await;
    if let Ok(Some(away)) = noted.await {
        let text = away.to_string().replace(['"', '\\', '\n'], "'");
        let warning = header::HeaderValue::from_str(&format!("{STALE} \"{text}\""));
        response
            .headers_mut()
            .extend(warning.ok().map(|warning| (header::WARNING, warning)));
    }
    response
}

/// Runs `work` where it may wait; its result as JSON.
async fn run<T: serde::Serialize + Send + 'static>(
    State(part): Shared,
    work: impl FnOnce(&Part) -> Result<T, Refusal> + Send + 'static,
) -> Response {
    match tokio::task::spawn_blocking(move || work(&part)).await {
        Ok(Ok(result)) => Json(result).into_response(),
        Ok(Err(refusal)) => answer(refusal),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

fn answer(refusal: Refusal) -> Response {
    let code = match &refusal {
        Refusal::Operator(Refused::Elsewhere(place)) => return lead::refuse(place),
        Refusal::Invalid(_) => StatusCode::BAD_REQUEST,
        Refusal::Operator(refused) => code(refused),
        Refusal::Stopped(_) | Refusal::NoGateway => StatusCode::SERVICE_UNAVAILABLE,
    };
    let is_unled = matches!(refusal, Refusal::Operator(Refused::Unled));
    let error = refusal.to_string();
    let mut response = (code, Json(Problem { error })).into_response();
    if is_unled {
        // One leads within seconds.
        let after = header::HeaderValue::from_static("1");
        response.headers_mut().insert(header::RETRY_AFTER, after);
    }
    response
}

fn code(refused: &Refused) -> StatusCode {
    match refused {
        Refused::Name(_)
        | Refused::Size(_)
        | Refused::Replicas(_)
        | Refused::Shrinks { .. }
        | Refused::Nodes(NodeError::NoPlace(_)) => StatusCode::BAD_REQUEST,
        Refused::Unknown(_) | Refused::Nodes(NodeError::Unknown(_)) => StatusCode::NOT_FOUND,
        Refused::Exists(_)
        | Refused::FewNodes { .. }
        | Refused::OtherNode { .. }
        | Refused::Exchange(_)
        | Refused::Nodes(_) => StatusCode::CONFLICT,
        Refused::NoRoom(_) => StatusCode::INSUFFICIENT_STORAGE,
        Refused::Stops | Refused::Unled | Refused::NoTor(_) | Refused::NoNode(_) => {
            StatusCode::SERVICE_UNAVAILABLE
        }
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    }
}
