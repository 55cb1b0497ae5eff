//! The commands' side of the control API.

use super::api::{
    AddNodes, Create, Exchange, Exchanged, Node, NodePlace, Patch, Problem, STALE, Status, Volume,
};
use crate::failure::{Failure, told};
use anyhow::{Context, bail};
use clap::Args;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::time::{Duration, Instant};
use ureq::http::header::{LOCATION, RETRY_AFTER, WARNING};
use ureq::http::{HeaderMap, Method, Request, StatusCode};
use ureq::{Agent, Body};

/// Which rack a command asks.
#[derive(Args)]
pub struct RackArgs {
    /// Control address of the rack
    #[arg(
        long,
        value_name = "URL",
        default_value = "http://127.0.0.1:9180",
        global = true
    )]
    pub control: String,
    /// Print JSON
    #[arg(long, global = true)]
    pub json: bool,
}

/// The longest a rack may take to answer: creating a volume waits for its nodes.
const TIMEOUT: Duration = Duration::from_secs(90);
/// An exchange copies two vSSDs first.
const EXCHANGE_TIMEOUT: Duration = Duration::from_secs(2 * 60 * 60);
/// From gateway to gateway for so long: another one serves within two seconds what a gateway led that died.
const FOLLOWS_WITHIN: Duration = Duration::from_secs(5);
/// Between two rounds.
const FOLLOWS_EVERY: Duration = Duration::from_millis(250);

/// A running rack, as the commands see it.
#[derive(Debug)]
pub struct Client {
    base: String,
    agent: Agent,
}

impl Client {
    /// Of the rack whose control address is `base`, with or without `http://`.
    pub fn new(base: &str) -> Self {
        Self::waiting(base, TIMEOUT)
    }

    /// As [`new`](Client::new), for an exchange.
    pub fn patient(base: &str) -> Self {
        Self::waiting(base, EXCHANGE_TIMEOUT)
    }

    fn waiting(base: &str, timeout: Duration) -> Self {
        let base = match base.contains("://") {
            true => base.trim_end_matches('/').to_owned(),
            false => format!("http://{}", base.trim_end_matches('/')),
        };
        let agent = Agent::config_builder()
            .http_status_as_error(false)
            // The client follows by itself: only to the lead, and with the body.
            .max_redirects(0)
            .max_redirects_will_error(false)
            .timeout_global(Some(timeout))
            .timeout_connect(Some(Duration::from_secs(3)))
            .proxy(None)
            .build()
            .new_agent();
        Self { base, agent }
    }

    /// Everything there is to see.
    pub fn status(&self) -> anyhow::Result<Status> {
        self.ask(Method::GET, "/v1/status", ())
    }

    /// The events after number `since`; waits so many seconds if there are none.
    pub fn events<T: DeserializeOwned>(&self, since: u64, wait: u64) -> anyhow::Result<T> {
        self.ask(Method::GET, &format!("/v1/events?since={since}&wait={wait}"), ())
    }

    /// The volumes.
    pub fn volumes(&self) -> anyhow::Result<Vec<Volume>> {
        self.ask(Method::GET, "/v1/volumes", ())
    }

    /// One volume.
    pub fn volume(&self, name: &str) -> anyhow::Result<Volume> {
        self.ask(Method::GET, &path(name)?, ())
    }

    /// Creates a volume.
    pub fn create(&self, create: &Create) -> anyhow::Result<Volume> {
        self.ask(Method::POST, "/v1/volumes", create)
    }

    /// Changes a volume.
    pub fn patch(&self, name: &str, patch: Patch) -> anyhow::Result<Volume> {
        self.ask(Method::PATCH, &path(name)?, patch)
    }

    /// Deletes a volume.
    pub fn delete(&self, name: &str) -> anyhow::Result<()> {
        self.ask(Method::DELETE, &path(name)?, ())
    }

    /// Lets two vSSDs exchange their nodes.
    pub fn exchange(&self, exchange: Exchange) -> anyhow::Result<Exchanged> {
        self.ask(Method::POST, "/v1/exchanges", exchange)
    }

    /// The nodes.
    pub fn nodes(&self) -> anyhow::Result<Vec<Node>> {
        self.ask(Method::GET, "/v1/nodes", ())
    }

    /// Adds nodes.
    pub fn add_nodes(&self, nodes: &AddNodes) -> anyhow::Result<Vec<Node>> {
        self.ask(Method::POST, "/v1/nodes", nodes)
    }

    /// Has the rack forget a node.
    pub fn remove_node(&self, id: u8) -> anyhow::Result<Vec<Node>> {
        self.ask(Method::DELETE, &format!("/v1/nodes/{id}"), ())
    }

    /// Begins to drain a node, or ends that.
    pub fn drain(&self, id: u8, drains: bool) -> anyhow::Result<Vec<Node>> {
        self.ask(put_or_delete(drains), &format!("/v1/nodes/{id}/drain"), ())
    }

    /// Lets a node take another one's place.
    pub fn replace_node(&self, old: u8, new: &NodePlace) -> anyhow::Result<Vec<Node>> {
        self.ask(Method::PUT, &format!("/v1/nodes/{old}/replacement"), new)
    }

    /// Begins to rebalance, or ends that.
    pub fn rebalance(&self, rebalances: bool) -> anyhow::Result<Vec<Node>> {
        self.ask(put_or_delete(rebalances), "/v1/rebalance", ())
    }

    /// Asks, and follows to the gateway that leads what is asked for. A gateway that shows the way, or says that none leads, has
    /// done nothing.
    fn ask<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: impl Serialize,
    ) -> anyhow::Result<T> {
        let body = serde_json::to_vec(&body)?;
        let first = format!("{}{path}", self.base);
        let (mut url, mut asked) = (first.clone(), Vec::new());
        // Set by the first refusal.
        let (mut until, mut refused) = (None, None);
        loop {
            let (next, why) = match self.ask_one(&method, &url, &body)? {
                Answer::Done(text) => {
                    return serde_json::from_str(&text).with_context(|| {
                        format!("{url} does not answer as a rack does: check that --control names a rack of this version")
                    });
                }
                Answer::Lead(way, refusal) => {
                    if !is_way(&first, &way) {
                        bail!("{refusal}");
                    }
                    refused = Some(refusal.clone());
                    (way, refusal)
                }
                Answer::Later(refusal) => (first.clone(), refusal),
                // The gateway that leads has gone, and another one will lead soon.
                Answer::Absent(error) => match &refused {
                    None => return Err(error),
                    Some(refusal) => {
                        let why = format!("{refusal}; it does not answer from here: {}", told(&error));
                        (first.clone(), why)
                    }
                },
            };
            if Instant::now() >= *until.get_or_insert_with(|| Instant::now() + FOLLOWS_WITHIN) {
                bail!("{why}");
            }
            asked.push(url);
            // One round is over: the lead is on its way from one gateway to another.
            if asked.contains(&next) {
                asked.clear();
                std::thread::sleep(FOLLOWS_EVERY);
            }
            url = next;
        }
    }

    fn ask_one(&self, method: &Method, url: &str, body: &[u8]) -> anyhow::Result<Answer> {
        let base = base_of(url);
        let request = Request::builder().method(method).uri(url);
        let response = if body == b"null" {
            self.agent.run(request.body(())?)
        } else {
            let request = request.header("content-type", "application/json");
            self.agent.run(request.body(body)?)
        };
        let mut response = match response {
            Ok(response) => response,
            Err(error) if is_unsent(&error) => return Ok(Answer::Absent(unreachable(base, error))),
            Err(error) => return Err(unreachable(base, error)),
        };
        if let Some(warning) = stale(response.headers()) {
            eprintln!("switchyard: {warning}");
        }
        let status = response.status();
        let location = response.headers().get(LOCATION);
        let location = location.and_then(|way| way.to_str().ok()).map(str::to_owned);
        let is_early = response.headers().contains_key(RETRY_AFTER);
        let body: &mut Body = response.body_mut();
        let text = body
            .with_config()
            .limit(64 << 20)
            .read_to_string()
            .with_context(|| format!("the answer of {base} is incomplete"))?;
        if status.is_success() {
            return Ok(Answer::Done(text));
        }
        let problem = match serde_json::from_str::<Problem>(&text) {
            Ok(problem) => problem.error,
            Err(_) => format!("{base} answered {status}: {}", text.trim()),
        };
        match location.filter(|_| status == StatusCode::TEMPORARY_REDIRECT) {
            Some(way) => Ok(Answer::Lead(way, problem)),
            None if is_early => Ok(Answer::Later(problem)),
            None => bail!("{problem}"),
        }
    }
}

/// What became of a request.
enum Answer {
    /// It was carried out.
    Done(String),
    /// Another gateway leads, and is asked there. With the refusal in words.
    Lead(String, String),
    /// Nothing was done, and another attempt may succeed. With the refusal in words.
    Later(String),
    /// Nobody has seen it.
    Absent(anyhow::Error),
}

/// Scheme, host and port of a URL.
fn base_of(url: &str) -> &str {
    let host = url.find("://").map_or(0, |at| at + 3);
    url[host..].find('/').map_or(url, |at| &url[..host + at])
}

/// True if the URL can be followed from where the first one was asked: it is for the same thing, and no loopback address
/// that somebody else has on this machine.
fn is_way(first: &str, way: &str) -> bool {
    let path = |url: &str| url[base_of(url).len()..].split('?').next().map(str::to_owned);
    way.starts_with("http://") && path(first) == path(way) && (is_local(first) || !is_local(way))
}

fn is_local(url: &str) -> bool {
    let host = base_of(url).split("://").last().unwrap_or_default();
    let host = host.rsplit_once(':').map_or(host, |(host, _)| host);
    let address = host.trim_matches(['[', ']']).parse::<IpAddr>();
    host == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

/// Why the response is of before.
fn stale(headers: &HeaderMap) -> Option<&str> {
    let text = headers.get(WARNING)?.to_str().ok()?.strip_prefix(STALE)?;
    Some(text.trim().trim_matches('"'))
}

fn is_unsent(error: &ureq::Error) -> bool {
    match error {
        ureq::Error::ConnectionFailed | ureq::Error::HostNotFound => true,
        ureq::Error::Timeout(what) => matches!(what, ureq::Timeout::Connect | ureq::Timeout::Resolve),
        // Only an attempt to connect is refused like this.
        ureq::Error::Io(why) => why.kind() == ErrorKind::ConnectionRefused,
        _ => false,
    }
}

fn unreachable(base: &str, error: ureq::Error) -> anyhow::Error {
    match error {
        ureq::Error::Io(_) | ureq::Error::ConnectionFailed | ureq::Error::HostNotFound => {
            Failure::NoRack(base.to_owned()).into()
        }
        ureq::Error::Timeout(_) => anyhow::anyhow!("{base} does not answer in time: {error}"),
        error => anyhow::Error::from(error).context(format!("cannot ask {base}")),
    }
}

fn put_or_delete(puts: bool) -> Method {
    if puts { Method::PUT } else { Method::DELETE }
}

/// The path of a volume; a name that cannot exist is refused here.
fn path(name: &str) -> anyhow::Result<String> {
    if !rack::registry::name_is_valid(name) {
        bail!(Failure::Usage(format!(
            "`{name}` is not a volume name: use letters, digits, `-`, `_` and `.`, at most {}, and do not begin with `-` or `.`",
            rack::registry::NAME_BYTES_MAX
        )));
    }
    Ok(format!("/v1/volumes/{name}"))
}

#[cfg(test)]
mod tests {
    use super::super::server::{Server, bind};
    use super::*;
    use axum::Router;
    use axum::response::IntoResponse;
    use axum::routing::patch;
    use std::net::SocketAddr;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    /// A gateway that carries changes out, or shows the way.
    struct Gateway {
        server: Server,
        asked: Arc<AtomicU32>,
    }

    const PATH: &str = "/v1/volumes/db";

    impl Gateway {
        fn new(way: impl Fn(u32) -> Option<SocketAddr> + Clone + Send + Sync + 'static) -> Self {
            let asked = Arc::new(AtomicU32::new(0));
            let count = Arc::clone(&asked);
            let answer = async move |body: String| {
                let nth = count.fetch_add(1, Ordering::Relaxed);
                assert_eq!(body, r#"{"replicas":3}"#, "the request comes whole");
                match way(nth) {
                    Some(lead) => {
                        let location = format!("http://{lead}{PATH}?rack=x");
                        let text = r#"{"error":"the other one leads"}"#;
                        (StatusCode::TEMPORARY_REDIRECT, [("location", location)], text).into_response()
                    }
                    None => r#""done""#.into_response(),
                }
            };
            let server = bind("127.0.0.1:0".parse().unwrap()).unwrap();
            let server = Server::with(server, Router::new().route(PATH, patch(answer))).unwrap();
            Self { server, asked }
        }

        fn address(&self) -> SocketAddr {
            self.server.address()
        }

        fn asked(&self) -> u32 {
            self.asked.load(Ordering::Relaxed)
        }
    }

    fn ask(gateway: &Gateway) -> anyhow::Result<String> {
        let change = Patch {
            replicas: Some(3),
            ..Patch::default()
        };
        Client::new(&gateway.address().to_string()).ask(Method::PATCH, PATH, change)
    }

    #[test]
    fn a_command_follows_to_the_gateway_that_leads() {
        let lead = Gateway::new(|_| None);
        let at = lead.address();
        let second = Gateway::new(move |_| Some(at));
        let at = second.address();
        let first = Gateway::new(move |_| Some(at));
        assert_eq!(ask(&first).unwrap(), "done");
        assert_eq!((first.asked(), second.asked(), lead.asked()), (1, 1, 1));
    }

    #[test]
    fn gateways_that_name_each_other_are_asked_again_and_not_for_ever() {
        let other = Arc::new(std::sync::OnceLock::new());
        let at = Arc::clone(&other);
        let first = Gateway::new(move |_| at.get().copied());
        let at = first.address();
        let second = Gateway::new(move |nth| (nth < 2).then_some(at));
        other.set(second.address()).unwrap();
        assert_eq!(ask(&first).unwrap(), "done", "the lead has arrived meanwhile");
        assert!(second.asked() >= 3, "{}", second.asked());
        let started = Instant::now();
        let itself = Arc::new(std::sync::OnceLock::new());
        let to = Arc::clone(&itself);
        let looping = Gateway::new(move |_| to.get().copied());
        itself.set(looping.address()).unwrap();
        assert_eq!(ask(&looping).unwrap_err().to_string(), "the other one leads");
        assert!(
            started.elapsed() >= FOLLOWS_WITHIN && looping.asked() < 40,
            "{}",
            looping.asked()
        );
    }

    #[test]
    fn a_lead_that_has_gone_is_asked_for_again_where_the_command_began() {
        let gone = Gateway::new(|_| None);
        let at = gone.address();
        drop(gone);
        let first = Gateway::new(move |nth| (nth < 2).then_some(at));
        assert_eq!(ask(&first).unwrap(), "done");
        assert_eq!(first.asked(), 3);
    }

    #[test]
    fn a_command_waits_a_moment_for_a_gateway_to_lead() {
        let asked = Arc::new(AtomicU32::new(0));
        let count = Arc::clone(&asked);
        let answer = async move || match count.fetch_add(1, Ordering::Relaxed) {
            0 | 1 => {
                let text = r#"{"error":"no gateway leads"}"#;
                (StatusCode::SERVICE_UNAVAILABLE, [("retry-after", "1")], text).into_response()
            }
            _ => r#""done""#.into_response(),
        };
        let server = bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let server = Server::with(server, Router::new().route(PATH, patch(answer))).unwrap();
        let client = Client::new(&server.address().to_string());
        let done: String = client.ask(Method::PATCH, PATH, Patch::default()).unwrap();
        assert_eq!((done.as_str(), asked.load(Ordering::Relaxed)), ("done", 3));
    }

    #[test]
    fn a_loopback_address_is_followed_only_from_its_machine_and_only_to_the_same_thing() {
        let first = "http://10.0.0.1:9180/v1/volumes/db";
        for (way, follows) in [
            ("http://10.0.0.2:9180/v1/volumes/db?rack=x", true),
            ("http://127.0.0.1:9180/v1/volumes/db?rack=x", false),
            ("http://[::1]:9180/v1/volumes/db", false),
            ("http://10.0.0.2:9180/v1/volumes/other", false),
            ("https://10.0.0.2:9180/v1/volumes/db", false),
            ("/v1/volumes/db", false),
        ] {
            assert_eq!(is_way(first, way), follows, "{way}");
        }
        for first in [
            "http://127.0.0.1:1/v1/nodes",
            "http://localhost:1/v1/nodes",
            "http://[::1]:1/v1/nodes",
        ] {
            assert!(is_way(first, "http://127.0.0.1:9181/v1/nodes?rack=x"), "{first}");
        }
    }
}
