//! Whether this part can do what it is there for: for load balancers and supervisors. And what is wrong with the whole rack, as a
//! gateway sees it.

use super::part::Part;
use super::refusal::Refusal;
use base::{Addr, Duration, Instant, NodeId};
use host::Gateway;
use host::gateway::{NodeAnswer, VolumeState};
use rack::registry::{SetRecord, VolumeRecord};
use std::collections::BTreeSet;

/// A node that has not answered for so long is silent. A gateway asks each five times a second, and takes one for gone after less.
const NODE_SILENT_AFTER: Duration = Duration::from_secs(3);
/// The same, if the nodes were asked just now, and waited for.
pub(super) const ASKED_SILENT_AFTER: Duration = Duration::from_secs(1);
/// A ToR that answers has done so within this: a gateway asks each once a second.
const TOR_SILENT_AFTER: Duration = Duration::from_millis(1500);

impl Part {
    /// Why it does not serve, or not yet; nothing if it is ready. A volume that has failed keeps nobody from the others. A registry that
    /// does not answer keeps nobody from what is served.
    pub fn unready(&self) -> Vec<String> {
        if !self.is_running() {
            return vec!["a core stopped because of a bug: see the process's messages".to_owned()];
        }
        let nodes: Vec<NodeId> = self.local_nodes().collect();
        let mut why: Vec<String> = nodes.iter().filter_map(|id| self.unready_node(*id)).collect();
        if self.has_gateway() {
            match self.unready_gateway() {
                Ok(found) => why.extend(found),
                Err(refusal) => why.push(refusal.to_string()),
            }
        }
        why
    }

    fn unready_node(&self, id: NodeId) -> Option<String> {
        let seen = self.node(id, |node, _| {
            let tors: Vec<Addr> = node.uplink().tors().collect();
            (node.is_refused(), node.uplink().hears(), tors)
        });
        let NodeId(id) = id;
        match seen {
            Err(stopped) => Some(stopped.to_string()),
            Ok(None) => None,
            Ok(Some((true, ..))) => Some(format!(
                "node {id} does not know the rack's level: give it the program that the gateway has"
            )),
            Ok(Some((_, false, tors))) => Some(format!("node {id}: {}", no_tor(&tors))),
            Ok(Some(_)) => None,
        }
    }

    fn unready_gateway(&self) -> Result<Vec<String>, Refusal> {
        if let Some(trouble) = self.trouble(NODE_SILENT_AFTER)? {
            return Ok(vec![trouble]);
        }
        let seen = self.look()?;
        let records: Vec<VolumeRecord> = seen.records.served().cloned().collect();
        let waiting = self.gateway(move |gateway, now| {
            let silent = silent(gateway.nodes(), now, NODE_SILENT_AFTER);
            let waits = |record: &&VolumeRecord| match gateway.volume_state(record.volume()) {
                Some(VolumeState::Opening) => true,
                Some(VolumeState::Ready) => record.sets.iter().any(|set| is_silent(set, &silent)),
                Some(VolumeState::Failed(..)) | None => false,
            };
            let waiting = records.iter().filter(waits);
            waiting.map(|record| record.name.clone()).collect::<Vec<_>>()
        })?;
        let told = |name: String| format!("volume `{name}` waits for its nodes");
        Ok(waiting.into_iter().map(told).collect())
    }

    /// The trouble of a gateway that can ask nobody: no ToR answers, or no node.
    pub(super) fn trouble(&self, silent_after: Duration) -> Result<Option<String>, Refusal> {
        self.gateway(move |gateway, now| trouble(gateway, now, silent_after))
    }
}

fn trouble(gateway: &Gateway, now: Instant, silent_after: Duration) -> Option<String> {
    let nodes = gateway.nodes();
    let all = !nodes.is_empty() && silent(nodes, now, silent_after).len() == nodes.len();
    let mut heard = gateway
        .tors()
        .iter()
        .filter_map(|tor| tor.last.as_ref().map(|(at, _)| *at));
    let is_heard = heard.any(|at| now.since(at) < TOR_SILENT_AFTER);
    if !gateway.uplink().hears() || all && !is_heard {
        let tors: Vec<Addr> = gateway.uplink().tors().collect();
        return Some(no_tor(&tors));
    }
    all.then(|| {
        format!(
            "none of the {} nodes answers, though a ToR does: start them, or look at the network between",
            nodes.len()
        )
    })
}

fn no_tor(tors: &[Addr]) -> String {
    let tors: Vec<String> = tors.iter().map(ToString::to_string).collect();
    format!(
        "no ToR answers at {}: start it again at this address, or look at the network to it; nodes cannot be asked meanwhile",
        tors.join(", ")
    )
}

/// The nodes that do not answer.
fn silent(nodes: &[NodeAnswer], now: Instant, after: Duration) -> BTreeSet<u8> {
    let answers = |node: &&NodeAnswer| {
        let served = node.last.as_ref().map(|(at, _)| *at);
        let refused = node.refused.as_ref().map(|(at, _)| *at);
        served.max(refused).is_some_and(|at| now.since(at) < after)
    };
    let silent = nodes.iter().filter(|node| !answers(node));
    silent.map(|node| node.node.0).collect()
}

/// True if no node answers that has a copy of the set.
fn is_silent(set: &SetRecord, silent: &BTreeSet<u8>) -> bool {
    set.replicas.iter().all(|replica| silent.contains(&replica.node))
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::{Machine, Pool};
    use host::GatewayConfig;
    use rack::control::NodeStatus;
    use rack::registry::ReplicaRecord;
    use wire::rack::{Code, Header, Op, Packet};

    /// bug: `/readyz` said 200 of a gateway whose only ToR was dead, and of one that no node answered; `status` said nothing of the ToR.
    #[test]
    fn a_gateway_that_hears_nobody_says_whom() {
        let tor = Addr::new([10, 0, 0, 1], 8888);
        let me = Addr::new([10, 0, 0, 2], 8888);
        let config = GatewayConfig {
            addr: me,
            tors: vec![tor],
            session: 1,
            nodes: vec![(NodeId(1), Addr::new([10, 0, 0, 11], 8888))],
            request_timeout: Duration::from_secs(30),
            shaping: None,
            reads: Default::default(),
            slow: Default::default(),
            shared: false,
        };
        let mut gateway = Gateway::new(config, Pool::new(64, 512));
        let now = Instant::ZERO + Duration::from_secs(1);
        gateway.tick(now);
        let why = trouble(&gateway, now, NODE_SILENT_AFTER).unwrap();
        assert!(
            why.contains("10.0.0.1:8888") && why.contains("start it again"),
            "{why}"
        );
        let asked = Header {
            source: me,
            ..Header::new(Op::Status, base::VssdId(0))
        };
        let answer = Header {
            source: tor,
            ..asked.reply(Code::SoftOrOk)
        };
        gateway.handle(now, host::Input::Packet(Packet::bare(answer)));
        let why = trouble(&gateway, now, NODE_SILENT_AFTER).unwrap();
        assert!(why.starts_with("none of the 1 nodes answers"), "{why}");
        let later = now + Duration::from_secs(2);
        let why = trouble(&gateway, later, ASKED_SILENT_AFTER).unwrap();
        assert!(why.contains("no ToR answers"), "{why}");
    }

    #[test]
    fn a_set_is_silent_if_all_its_nodes_are() {
        let at = Instant::ZERO + Duration::from_secs(60);
        let node = |id, heard: Option<u64>| {
            let mut node = NodeAnswer::unheard(NodeId(id), Addr::NONE);
            node.last = heard.map(|ms| (Instant::ZERO + Duration::from_millis(ms), NodeStatus::default()));
            node
        };
        let silent = silent(
            &[node(1, None), node(2, Some(57_000)), node(3, Some(57_001))],
            at,
            NODE_SILENT_AFTER,
        );
        assert_eq!(silent, [1, 2].into());
        let set = |nodes: [u8; 2]| SetRecord {
            replicas: nodes.map(|node| ReplicaRecord { vssd: 1, node }).to_vec(),
            ..SetRecord::default()
        };
        assert!(is_silent(&set([1, 2]), &silent) && !is_silent(&set([2, 3]), &silent));
    }
}
