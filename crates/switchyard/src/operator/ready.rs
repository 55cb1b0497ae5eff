//! Whether this part can do what it is there for: for load balancers and supervisors.

use super::part::Part;
use base::NodeId;
use host::gateway::VolumeState;

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
            match self.unready_volumes() {
                Ok(volumes) => why.extend(volumes),
                Err(refusal) => why.push(refusal.to_string()),
            }
        }
        why
    }

    fn unready_node(&self, id: NodeId) -> Option<String> {
        let seen = self.node(id, |node, _| {
            (node.is_refused(), node.uplink().seen().any(|tor| tor.answers))
        });
        let NodeId(id) = id;
        match seen {
            Err(stopped) => Some(stopped.to_string()),
            Ok(None) => None,
            Ok(Some((true, _))) => Some(format!(
                "node {id} does not know the rack's level: give it the program that the gateway has"
            )),
            Ok(Some((_, false))) => Some(format!("node {id}: no ToR answers")),
            Ok(Some(_)) => None,
        }
    }

    /// The volumes that this gateway is to serve and does not yet.
    fn unready_volumes(&self) -> Result<Vec<String>, super::Refusal> {
        let seen = self.look()?;
        let served: Vec<_> = seen.records.served().map(|record| record.volume()).collect();
        let opening = self.gateway(move |gateway, _| {
            let opening = |id: &base::VolumeId| gateway.volume_state(*id) == Some(VolumeState::Opening);
            served.into_iter().filter(opening).collect::<Vec<_>>()
        })?;
        let name = |id| {
            seen.records
                .volume_of(id)
                .map(|record| format!("volume `{}` waits for its nodes", record.name))
        };
        Ok(opening.into_iter().filter_map(name).collect())
    }
}
