//! Which of several gateways serves which volume, and which one leads the rack. The registry says it, and gives each
//! lead a session higher than any before; nodes then refuse what is sent in a lower one (`dedup`). So it does not matter
//! for what clients read how well a gateway judges that another one is gone: judged wrongly, a lead moves in vain.
//!
//! Every gateway looks from time to time, and asks the others through the rack's switch whether they are there. Rules:
//! - **The rack** has one lead, which creates volumes and changes nodes. A gateway takes it when nobody has it, or when the
//!   one that has it is silent.
//! - **A volume without a lead**, or with a silent one, goes to the gateway that leads the fewest; who is not taken by that
//!   one in time is taken by whoever sees it.
//! - **Silent** is a gateway that has not answered for long, and several questions in a row, while most nodes answer. One
//!   whose registry stalls answers, and is not silent.
//! - **Balance**: a gateway that leads two volumes more than another one gives one to it, once that one has answered for
//!   long. So a difference of one moves nothing, and a gateway that comes and goes gets nothing.
//! - **A start** begins with the volumes that the records have for this gateway, in new sessions.
//! - **A lead that is lost again at once** is taken again ever later.

use crate::registry::{LeadRecord, Snapshot, VolumeRecord};
use base::{Addr, Duration, Instant, VolumeId};
use std::collections::{BTreeMap, BTreeSet};

/// A gateway is silent only after so many unanswered questions: time alone says nothing, as whoever asks may have slept.
const ASKS_UNANSWERED: u32 = 3;
/// A gateway that has answered for so many times the silence that is borne gets volumes of others.
const STEADY: u32 = 4;
/// Volumes that a gateway gives away at a time.
const GIFTS_MAX: usize = 8;
/// Times that the wait before a lost lead is taken again is doubled, at most.
const DOUBLINGS_MAX: u32 = 6;

/// Another gateway, as it was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Its address.
    pub addr: Addr,
    /// When it was heard last.
    pub heard: Option<Instant>,
    /// Questions since that it has not answered.
    pub unanswered: u32,
    /// It may be given volumes: it reaches the registry.
    pub ready: bool,
}

/// A gateway's knowledge when it looks.
#[derive(Clone, Copy, Debug)]
pub struct Sight<'a> {
    /// The sessions in which it serves volumes.
    pub serves: &'a BTreeMap<VolumeId, u32>,
    /// Volumes that are at work, or are being given away: they stay as they are.
    pub busy: &'a BTreeSet<VolumeId>,
    /// The other gateways.
    pub peers: &'a [Seen],
    /// At least half of the nodes have answered it lately.
    pub reaches_rack: bool,
}

/// Its next action.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Store the changed snapshot. If somebody else stored first, look again.
    pub store: bool,
    /// Serve these no more, and then give each to that gateway.
    pub give: Vec<(VolumeId, Addr)>,
    /// A volume has no lead: look again soon.
    pub is_unled: bool,
}

#[derive(Clone, Copy, Debug)]
struct Peer {
    /// It could have been heard since, and was not.
    since: Instant,
    is_silent: bool,
    /// It has answered, and may be given volumes, since.
    steady: Option<Instant>,
}

/// One gateway's view of the leads.
#[derive(Clone, Debug)]
pub struct Watch {
    me: Addr,
    silent_after: Duration,
    /// Its sessions are not lower than this.
    session_min: u32,
    peers: BTreeMap<Addr, Peer>,
    /// Sessions that this start has named for itself: of the rack, and of volumes.
    rack: Option<u32>,
    volumes: BTreeMap<VolumeId, u32>,
    /// Volumes that nobody leads, since when.
    orphans: BTreeMap<VolumeId, Instant>,
    /// Volumes whose lead was lost and taken again: not before then, and how often that was.
    pauses: BTreeMap<VolumeId, (Instant, u32)>,
}

impl Watch {
    /// Of the gateway at `me`. One that has not answered for `silent_after` is taken for gone. Sessions are not below
    /// `session_min`.
    pub fn new(me: Addr, silent_after: Duration, session_min: u32) -> Self {
        Self {
            me,
            silent_after,
            session_min,
            peers: BTreeMap::new(),
            rack: None,
            volumes: BTreeMap::new(),
            orphans: BTreeMap::new(),
            pauses: BTreeMap::new(),
        }
    }

    /// Whose this is.
    pub fn me(&self) -> Addr {
        self.me
    }

    /// The session in which this start leads the rack, as the records have it.
    pub fn rack_session(&self, records: &Snapshot) -> Option<u32> {
        let lead = records.lead.as_ref().filter(|lead| lead.is_of(self.me))?;
        self.rack.filter(|session| *session == lead.session)
    }

    /// The session in which this start leads a volume, as the records have it.
    pub fn session(&self, volume: &VolumeRecord) -> Option<u32> {
        let lead = volume.lead.as_ref().filter(|lead| lead.is_of(self.me))?;
        let named = self.volumes.get(&volume.volume());
        named.copied().filter(|session| *session == lead.session)
    }

    /// Names this gateway the lead of a volume that is new.
    pub fn name(&mut self, next: &mut Snapshot, id: VolumeId) -> LeadRecord {
        let session = next.next_session(self.session_min);
        self.volumes.insert(id, session);
        LeadRecord::new(self.me, session)
    }

    /// The other gateways, which are to be asked whether they are there.
    pub fn peers(&self, records: &Snapshot) -> BTreeSet<Addr> {
        let entered = records.gateways.iter();
        let entered = entered.filter_map(|gateway| crate::registry::parse_addr(&gateway.addr));
        let leads = records.volumes.iter().filter_map(|volume| volume.lead.as_ref());
        let leading = leads.chain(&records.lead).filter_map(LeadRecord::addr);
        entered.chain(leading).filter(|addr| *addr != self.me).collect()
    }

    /// Takes note of who has answered; true if one that leads is silent now, and was not before.
    pub fn hear(&mut self, now: Instant, records: &Snapshot, sight: &Sight) -> bool {
        let peers = self.peers(records);
        self.peers.retain(|addr, _| peers.contains(addr));
        let mut news = false;
        for addr in peers {
            let seen = sight.peers.iter().find(|seen| seen.addr == addr);
            let heard = seen.and_then(|seen| seen.heard);
            let peer = self.peers.entry(addr).or_insert(Peer {
                since: now,
                is_silent: false,
                steady: None,
            });
            // While the rack is out of reach, silence says nothing.
            peer.since = match sight.reaches_rack {
                true => heard.map_or(peer.since, |heard| heard.max(peer.since)),
                false => now,
            };
            let asked = seen.is_some_and(|seen| seen.unanswered >= ASKS_UNANSWERED);
            let is_silent = asked && now.since(peer.since) >= self.silent_after;
            news |= is_silent && !peer.is_silent;
            peer.is_silent = is_silent;
            let is_late = heard.is_none_or(|heard| now.since(heard) >= self.silent_after);
            let is_there = sight.reaches_rack && !is_late && seen.is_some_and(|seen| seen.ready);
            peer.steady = is_there.then(|| peer.steady.unwrap_or(now));
        }
        news
    }

    fn is_silent(&self, addr: Addr) -> bool {
        self.peers.get(&addr).is_some_and(|peer| peer.is_silent)
    }

    /// Decides. With [`Plan::store`] the snapshot was changed.
    pub fn look(&mut self, now: Instant, next: &mut Snapshot, sight: &Sight) -> Plan {
        self.hear(now, next, sight);
        let before = next.clone();
        self.end_gathering(next);
        self.take_rack(next);
        let all_led = self.take_volumes(now, next, sight);
        let store = *next != before;
        let give = match store {
            true => Vec::new(),
            false => self.gifts(now, next, sight, all_led),
        };
        let is_unled = !all_led;
        Plan {
            store,
            give,
            is_unled,
        }
    }

    /// Nobody gathers volumes for a gateway that is gone, or has started again.
    fn end_gathering(&self, next: &mut Snapshot) {
        let began_before = self.rack.is_none() && self.volumes.is_empty();
        let is_over = |addr: Addr| self.is_silent(addr) || addr == self.me && began_before;
        next.gathering
            .take_if(|gathering| crate::registry::parse_addr(&gathering.gateway).is_none_or(is_over));
    }

    fn take_rack(&mut self, next: &mut Snapshot) {
        let last = next.lead.clone();
        let is_mine = self.rack_session(next).is_some();
        let is_led = last.as_ref().and_then(LeadRecord::addr);
        let is_led = is_led.is_some_and(|addr| addr != self.me && !self.is_silent(addr));
        // What is nobody's any more is deleted in a session above that of its last lead.
        let max = next.session_max();
        let is_outdone = !next.leftovers.is_empty() && last.as_ref().is_none_or(|lead| lead.session < max);
        if is_led || is_mine && !is_outdone {
            return;
        }
        // Volumes without a lead of their own keep the one that they have.
        for volume in &mut next.volumes {
            volume
                .lead
                .get_or_insert_with(|| last.clone().unwrap_or_default());
        }
        let session = next.next_session(self.session_min);
        next.lead = Some(LeadRecord::new(self.me, session));
        self.rack = Some(session);
    }

    /// Takes the volumes that are this gateway's to take. True if every volume has a lead.
    fn take_volumes(&mut self, now: Instant, next: &mut Snapshot, sight: &Sight) -> bool {
        let (mut taken, mut orphans) = (Vec::new(), Vec::new());
        for volume in &next.volumes {
            let id = volume.volume();
            match next.leader_of(volume) {
                Some(addr) if addr == self.me => {
                    let session = self.session(volume);
                    let is_served = session.is_some() && sight.serves.get(&id) == session.as_ref();
                    if !is_served && !sight.busy.contains(&id) && self.may_retake(now, id, session) {
                        taken.push(id);
                    } else if is_served && self.pauses.get(&id).is_some_and(|(until, _)| now >= *until) {
                        self.pauses.remove(&id);
                    }
                }
                Some(addr) if !self.is_silent(addr) => {}
                _ => orphans.push(id),
            }
        }
        self.orphans.retain(|id, _| orphans.contains(id));
        let mut counts = self.counts(next, |peer| peer.steady.is_some());
        for &id in &orphans {
            let age = now.since(*self.orphans.entry(id).or_insert(now));
            let is_late = age >= self.silent_after;
            let named = self.named_for(next, id).filter(|addr| !self.is_silent(*addr));
            let heir = named.or_else(|| least(&counts)).filter(|_| !is_late);
            // One that has just started waits until it knows whether it reaches the rack.
            let may = sight.reaches_rack || is_late || named == Some(self.me);
            match heir {
                Some(heir) if heir != self.me => *counts.entry(heir).or_default() += 1,
                _ if may => {
                    *counts.entry(self.me).or_default() += 1;
                    taken.push(id);
                }
                _ => {}
            }
        }
        let is_taken = |id: &VolumeId| taken.contains(id);
        let all_led = orphans.iter().all(is_taken);
        self.take(next, &taken);
        all_led
    }

    fn take(&mut self, next: &mut Snapshot, taken: &[VolumeId]) {
        // As at a start: an exchange that was not decided is undone.
        let mut exchanging = next
            .volumes
            .iter()
            .filter(|volume| taken.contains(&volume.volume()));
        if exchanging.any(|volume| volume.sets.iter().any(|set| set.exchanges())) {
            next.undo_exchange();
        }
        for &id in taken {
            let lead = self.name(next, id);
            if let Some(volume) = next.volume_mut(id) {
                volume.lead = Some(lead);
            }
            self.orphans.remove(&id);
        }
    }

    /// True if a volume that the records have for this gateway may be taken anew: it has just started, or lost the volume.
    fn may_retake(&mut self, now: Instant, id: VolumeId, session: Option<u32>) -> bool {
        if session.is_none() {
            return true;
        }
        let (until, times) = self.pauses.get(&id).copied().unwrap_or((now, 0));
        if now < until {
            return false;
        }
        let pause = self.silent_after * (1 << times.min(DOUBLINGS_MAX));
        self.pauses.insert(id, (now + pause, times + 1));
        true
    }

    /// The gateway that a volume was given to, or that gathers it.
    fn named_for(&self, records: &Snapshot, id: VolumeId) -> Option<Addr> {
        let gathering = records.gathering.as_ref().filter(|_| records.is_gathered(id));
        let lead = records.volume_of(id).and_then(|volume| records.lead_of(volume));
        let name = match gathering {
            Some(gathering) => &gathering.gateway,
            None => &lead.filter(|lead| lead.gateway.is_empty())?.to,
        };
        crate::registry::parse_addr(name)
    }

    /// The volumes that this gateway and such others lead.
    fn counts(&self, records: &Snapshot, others: impl Fn(&Peer) -> bool) -> BTreeMap<Addr, usize> {
        let others = self.peers.iter().filter(|(_, peer)| others(peer));
        let all = others.map(|(addr, _)| *addr).chain([self.me]);
        let mut counts: BTreeMap<Addr, usize> = all.map(|addr| (addr, 0)).collect();
        for volume in &records.volumes {
            let leader = records.leader_of(volume);
            if let Some(count) = leader.and_then(|addr| counts.get_mut(&addr)) {
                *count += 1;
            }
        }
        counts
    }

    /// What this gateway is to give away.
    fn gifts(&self, now: Instant, records: &Snapshot, sight: &Sight, all_led: bool) -> Vec<(VolumeId, Addr)> {
        let mine = records.volumes.iter().filter(|volume| {
            let id = volume.volume();
            self.session(volume).is_some() && sight.serves.contains_key(&id) && !sight.busy.contains(&id)
        });
        let gathered = |volume: &&VolumeRecord| records.is_gathered(volume.volume());
        let (gathered, others): (Vec<&VolumeRecord>, Vec<&VolumeRecord>) = mine.partition(gathered);
        let gatherer = gathered
            .first()
            .and_then(|volume| self.named_for(records, volume.volume()));
        let gatherer = gatherer.filter(|addr| *addr != self.me && !self.is_silent(*addr));
        let mut gifts: Vec<(VolumeId, Addr)> = gatherer
            .into_iter()
            .flat_map(|to| gathered.iter().map(move |volume| (volume.volume(), to)))
            .collect();
        if !all_led || !sight.reaches_rack {
            return gifts;
        }
        let after = self.silent_after * STEADY;
        let is_steady = |peer: &Peer| peer.steady.is_some_and(|since| now.since(since) >= after);
        let mut counts = self.counts(records, is_steady);
        let settled = others.iter().filter(|volume| is_settled(records, volume));
        for volume in settled.rev().take(GIFTS_MAX) {
            let have = counts.remove(&self.me).unwrap_or(0);
            match least(&counts).filter(|to| counts[to] + 2 <= have) {
                Some(to) => {
                    *counts.entry(to).or_default() += 1;
                    counts.insert(self.me, have - 1);
                    gifts.push((volume.volume(), to));
                }
                None => break,
            }
        }
        gifts
    }
}

/// True if nothing of a volume is under way.
fn is_settled(records: &Snapshot, volume: &VolumeRecord) -> bool {
    let id = volume.volume();
    volume.ready
        && !records.is_deleting(id)
        && records.growth_of(id).is_none()
        && !volume.sets.iter().any(|set| set.is_changing())
}

/// The gateway that leads the fewest.
fn least(counts: &BTreeMap<Addr, usize>) -> Option<Addr> {
    let fewest = counts.iter().min_by_key(|(addr, count)| (**count, **addr));
    fewest.map(|(addr, _)| *addr)
}

#[cfg(test)]
#[path = "lead_tests.rs"]
mod tests;
