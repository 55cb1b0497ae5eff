//! The commands' side of the control API.

use super::api::{AddNodes, Create, Exchange, Exchanged, Node, NodePlace, Patch, Problem, Status, Volume};
use crate::failure::Failure;
use anyhow::{Context, bail};
use clap::Args;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::time::Duration;
use ureq::http::{Method, Request};
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

    fn ask<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: impl Serialize,
    ) -> anyhow::Result<T> {
        let body = serde_json::to_vec(&body)?;
        let request = Request::builder()
            .method(&method)
            .uri(format!("{}{path}", self.base));
        let response = if body == b"null" {
            self.agent.run(request.body(())?)
        } else {
            self.agent
                .run(request.header("content-type", "application/json").body(body)?)
        };
        let mut response = response.map_err(|error| self.unreachable(error))?;
        let status = response.status();
        let body: &mut Body = response.body_mut();
        let text = body
            .with_config()
            .limit(64 << 20)
            .read_to_string()
            .with_context(|| format!("the answer of {} is incomplete", self.base))?;
        if !status.is_success() {
            match serde_json::from_str::<Problem>(&text) {
                Ok(problem) => bail!("{}", problem.error),
                Err(_) => bail!("{} answered {status}: {}", self.base, text.trim()),
            }
        }
        serde_json::from_str(&text).with_context(|| {
            format!(
                "{}{path} does not answer as a rack does: check that --control names a rack of this version",
                self.base
            )
        })
    }

    fn unreachable(&self, error: ureq::Error) -> anyhow::Error {
        match error {
            ureq::Error::Io(_) | ureq::Error::ConnectionFailed | ureq::Error::HostNotFound => {
                Failure::NoRack(self.base.clone()).into()
            }
            ureq::Error::Timeout(_) => anyhow::anyhow!("{} does not answer in time: {error}", self.base),
            error => anyhow::Error::from(error).context(format!("cannot ask {}", self.base)),
        }
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
