//! Requests to the members of an etcd, through its documented JSON gateway (`/v3/kv/…`, etcd 3.4 and newer).
//!
//! Invariants: every wait has a limit. The client asks one member after the other for what it reads. It asks another
//! member for a change only if the first one cannot have seen the request.

use rack::registry::RegistryError;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::cell::Cell;
use std::io::ErrorKind;
use std::time::{Duration, Instant};
use ureq::{Agent, Timeout};

/// A connection takes this long at most.
const CONNECT_WITHIN: Duration = Duration::from_secs(1);
/// A member answers within this, or another one is asked. An election of a leader takes one to two seconds.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
/// No other member is asked after this.
const ASK_WITHIN: Duration = Duration::from_secs(5);
/// Bytes of an answer at most: base64 of what the largest `--max-request-bytes` would take.
const ANSWER_BYTES_MAX: u64 = 64 << 20;

/// Why a request failed.
#[derive(Debug)]
enum Trouble {
    /// The member cannot have seen the request.
    Unsent(String),
    /// The member has refused it: it has not happened, and will not.
    Refused(String),
    /// It may have happened, or still happen.
    Unknown(String),
}

/// The refusals that no other attempt changes: a part of etcd's words, and what to do.
const REFUSALS: &[(&str, &str)] = &[
    (
        "request is too large",
        "start each member of etcd with a higher --max-request-bytes (1.5 MiB by default)",
    ),
    (
        "received message larger than max",
        "start each member of etcd with a higher --max-request-bytes (1.5 MiB by default)",
    ),
    (
        "database space exceeded",
        "compact and defragment etcd, disarm its alarm (etcdctl compact, defrag, alarm disarm), and start each member \
         with --auto-compaction-retention=1h",
    ),
    (
        "user name is empty",
        "it asks for a user, and Switchyard has none: use an etcd without authentication",
    ),
];

/// What etcd says of a request that failed.
#[derive(Deserialize)]
struct Problem {
    error: String,
}

/// The members of an etcd.
#[derive(Debug)]
pub struct Client {
    endpoints: Vec<String>,
    /// The member that is asked first: the last one that answered, or the one after it.
    first: Cell<usize>,
    agent: Agent,
}

impl Client {
    /// Of members at these addresses.
    pub fn new(endpoints: Vec<String>) -> Self {
        assert!(!endpoints.is_empty(), "an address names a member");
        let agent = Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(Some(ANSWER_WITHIN))
            .timeout_connect(Some(CONNECT_WITHIN))
            .proxy(None)
            .build()
            .new_agent();
        Self {
            endpoints,
            first: Cell::new(0),
            agent,
        }
    }

    /// Asks what changes nothing.
    pub fn read<T: DeserializeOwned>(&self, path: &str, body: &Value) -> Result<T, RegistryError> {
        self.ask(path, body, true)
    }

    /// Asks for a change. [`RegistryError::Unavailable`] leaves open whether it has happened, or will.
    pub fn write<T: DeserializeOwned>(&self, path: &str, body: &Value) -> Result<T, RegistryError> {
        self.ask(path, body, false)
    }

    fn ask<T: DeserializeOwned>(&self, path: &str, body: &Value, repeats: bool) -> Result<T, RegistryError> {
        let until = Instant::now() + ASK_WITHIN;
        let mut told = Vec::new();
        for _ in 0..self.endpoints.len() {
            let endpoint = &self.endpoints[self.first.get()];
            let why = match self.ask_member(endpoint, path, body) {
                Ok(answer) => return Ok(answer),
                Err(Trouble::Refused(why)) => {
                    return Err(RegistryError::Refused(format!("etcd at {endpoint}: {why}")));
                }
                Err(Trouble::Unknown(why)) if !repeats => {
                    self.turn();
                    return Err(RegistryError::Unavailable(format!("etcd at {endpoint}: {why}")));
                }
                Err(Trouble::Unsent(why) | Trouble::Unknown(why)) => why,
            };
            told.push(format!("{endpoint}: {why}"));
            self.turn();
            if Instant::now() >= until {
                break;
            }
        }
        let why = format!(
            "etcd serves no request; start its members, or correct --registry ({})",
            told.join("; ")
        );
        Err(RegistryError::Unavailable(why))
    }

    /// Another member is asked first from now on.
    fn turn(&self) {
        self.first.set((self.first.get() + 1) % self.endpoints.len());
    }

    fn ask_member<T: DeserializeOwned>(
        &self,
        endpoint: &str,
        path: &str,
        body: &Value,
    ) -> Result<T, Trouble> {
        let request = self.agent.post(format!("http://{endpoint}{path}"));
        let answer = request
            // A member without a leader says so at once.
            .header("Grpc-Metadata-hasleader", "true")
            // It gives up when nobody waits any more.
            .header("Grpc-Timeout", format!("{}m", ANSWER_WITHIN.as_millis()))
            .send_json(body);
        let mut answer = answer.map_err(trouble)?;
        let status = answer.status();
        let body = answer.body_mut().with_config().limit(ANSWER_BYTES_MAX);
        let text = body.read_to_string().map_err(trouble)?;
        if status.is_success() {
            let parsed = serde_json::from_str(&text);
            return parsed
                .map_err(|error| Trouble::Unknown(format!("it does not answer as etcd does: {error}")));
        }
        match serde_json::from_str::<Problem>(&text) {
            Ok(problem) => Err(refusal(problem.error)),
            Err(_) => Err(Trouble::Unknown(format!(
                "it answers {status}: Switchyard needs etcd 3.4 or newer with --enable-grpc-gateway, its default"
            ))),
        }
    }
}

fn refusal(error: String) -> Trouble {
    let known = REFUSALS.iter().find(|(words, _)| error.contains(words));
    match known {
        Some((_, remedy)) => Trouble::Refused(format!("{error}: {remedy}")),
        None => Trouble::Unknown(error),
    }
}

fn trouble(error: ureq::Error) -> Trouble {
    let connects = matches!(
        error,
        ureq::Error::HostNotFound
            | ureq::Error::ConnectionFailed
            | ureq::Error::Timeout(Timeout::Connect | Timeout::Resolve)
    );
    // Only an attempt to connect is refused like this.
    let is_refused = matches!(&error, ureq::Error::Io(why) if why.kind() == ErrorKind::ConnectionRefused);
    if connects || is_refused {
        return Trouble::Unsent(error.to_string());
    }
    Trouble::Unknown(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::thread::JoinHandle;

    /// Nobody listens there.
    fn closed() -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap().to_string()
    }

    /// A member that answers one request, or takes it and hangs up if it has no answer.
    fn member(answer: Option<(&'static str, &'static str)>) -> (String, JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let thread = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut seen = Vec::new();
            while !seen.ends_with(b"{}") {
                let mut bytes = [0; 1024];
                let count = stream.read(&mut bytes).unwrap();
                assert!(count > 0, "the request is whole");
                seen.extend_from_slice(&bytes[..count]);
            }
            if let Some((status, body)) = answer {
                let head = format!(
                    "HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
                    body.len()
                );
                stream.write_all(format!("{head}{body}").as_bytes()).unwrap();
            }
        });
        (address, thread)
    }

    #[test]
    fn a_member_that_cannot_be_reached_is_passed_over_and_not_asked_first_again() {
        let (address, thread) = member(Some(("200 OK", r#"{"a":1}"#)));
        let client = Client::new(vec![closed(), address]);
        let answer: Value = client.write("/v3/kv/txn", &json!({})).unwrap();
        assert_eq!((answer, client.first.get()), (json!({"a": 1}), 1));
        thread.join().unwrap();
    }

    #[test]
    fn only_what_reads_is_asked_again_after_an_answer_that_never_came() {
        for reads in [false, true] {
            let (silent, first) = member(None);
            let (good, second) = member(Some(("200 OK", "{}")));
            let client = Client::new(vec![silent, good]);
            let answer: Result<Value, _> = client.ask("/v3/kv/range", &json!({}), reads);
            assert_eq!(answer.is_ok(), reads);
            assert_eq!(client.first.get(), 1, "the next request goes to the other member");
            let again: Result<Value, _> = client.read("/v3/kv/range", &json!({}));
            assert_eq!(again.is_ok(), !reads, "each member answers once");
            first.join().unwrap();
            second.join().unwrap();
        }
    }

    #[test]
    fn a_refusal_for_good_names_its_remedy_and_any_other_is_in_doubt() {
        let too_large = r#"{"error":"etcdserver: request is too large","code":3}"#;
        let timed_out = r#"{"error":"etcdserver: request timed out","code":14}"#;
        let ask = |status, body| {
            let (address, thread) = member(Some((status, body)));
            let answer: Result<Value, _> = Client::new(vec![address]).write("/v3/kv/txn", &json!({}));
            thread.join().unwrap();
            answer.unwrap_err()
        };
        let RegistryError::Refused(why) = ask("400 Bad Request", too_large) else {
            panic!("it is not in doubt");
        };
        assert!(why.contains("--max-request-bytes"), "{why}");
        for (status, body) in [
            ("503 Service Unavailable", timed_out),
            ("404 Not Found", "Not Found"),
        ] {
            assert!(
                matches!(ask(status, body), RegistryError::Unavailable(_)),
                "{status}"
            );
        }
    }
}
