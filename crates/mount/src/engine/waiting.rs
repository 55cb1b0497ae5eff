//! Calls of the own client that wait for leases, and leases that go when calls end: what has others' leases change, too (`hearing`).

use super::held::{Pin, Pins, Resume, Wants};
use super::state::State;
use crate::media::Disks;
use base::Machine;
use fs::lease::{Given, Input, Mode};

impl State {
    /// A call has not what it wants: it goes on when it does.
    pub fn wait_for_leases(&mut self, disks: &Disks, wants: Wants, resume: Resume) {
        let has_all = self.may(&[], &wants).is_ok();
        let Some(own) = self.own().filter(|_| !has_all) else {
            // Things have changed meanwhile.
            return resume(Pins::new());
        };
        let leaves = |(inode, _): &(u64, Mode)| own.leaving.contains_key(inode);
        if let Some((inode, _)) = wants.leases.iter().copied().find(leaves) {
            let leaving = own.leaving.get_mut(&inode).expect("it was found");
            leaving.held.push((wants, resume));
            return;
        }
        let is_recalled =
            |(inode, _): &(u64, Mode)| own.pins.get(inode).is_some_and(|pin| pin.recalled.is_some());
        if let Some((inode, _)) = wants.leases.iter().copied().find(is_recalled) {
            own.pins.entry(inode).or_default().held.push((wants, resume));
            return;
        }
        let request = own.number();
        let (client, leases) = (own.client, wants.leases.clone());
        own.asked.insert(request, (wants, resume));
        let wants = leases;
        self.news(
            disks,
            Input::Ask {
                client,
                request,
                wants,
                has_mount: false,
            },
        );
    }

    /// A call has ended that had leases for its time.
    pub fn unpin(&mut self, disks: &Disks, pins: &[(u64, Mode)]) {
        for (inode, _) in pins {
            let Some(own) = self.own() else {
                return;
            };
            let Some(pin) = own.pins.get_mut(inode) else {
                continue;
            };
            pin.count -= 1;
            if pin.count > 0 {
                continue;
            }
            let Pin { recalled, held, .. } = own.pins.remove(inode).unwrap_or_default();
            match own.leaving.get_mut(inode) {
                Some(leaving) => {
                    // It was let through: the drop that counts may have ended meanwhile.
                    leaving.held.extend(held);
                    self.drop_again(*inode);
                }
                None => {
                    if let Some(may_share) = recalled {
                        self.leave(*inode, may_share, held);
                        self.drain(disks);
                    }
                }
            }
        }
    }

    /// The cache has dropped what it had of an inode, and all that was logged before is durable. False if it is to be told again.
    pub fn dropped(&mut self, disks: &Disks, inode: u64, number: u64) {
        let Some(own) = self.own() else {
            return;
        };
        let is_newest = own.leaving.get(&inode).is_some_and(|it| it.number == number);
        if !is_newest || own.pins.contains_key(&inode) {
            return;
        }
        let leaving = own.leaving.remove(&inode).expect("it was looked at");
        self.give(inode, leaving.keeps_shared);
        for (_, resume) in leaving.through.into_iter().chain(leaving.held) {
            resume(Pins::new());
        }
        self.drain(disks);
    }

    /// The caller has no use for an inode any more, while others have logs. If it has no name, the digest deletes it when nobody has it open.
    pub fn shut(&mut self, disks: &Disks, inode: u64) {
        let is_lost = self.client.take_lost(inode);
        let Some(own) = self.sharing.own.as_ref().filter(|own| own.is_shared) else {
            return;
        };
        let client = own.client;
        let is_used = own.pins.contains_key(&inode) || own.leaving.contains_key(&inode);
        match self.sharing.leases.mode(client, inode) {
            None => self.news(disks, Input::Shut(client, inode)),
            Some(_) if is_lost && !is_used => {
                // As if it had been given back before.
                let given = Given {
                    inode,
                    keeps_shared: false,
                    position: self.writer.durable_position(),
                    is_open: true,
                    grant: u64::MAX,
                };
                self.sharing.leases.handle(os::now(), Input::Give(client, given));
                self.news(disks, Input::Shut(client, inode));
            }
            Some(_) => {}
        }
    }
}
