//! The endpoints' health as seen by all instances, and the probe of a degraded one (P7). Simple for now: healthy or
//! degraded; the budget between them is another feature.

use crate::core::Core;
use crate::effect::Effect;
use crate::endpoint::{Claim, Ep};
use crate::hash;
use crate::input::{EndpointState, Epoch, OnUnknown, ParkedEvent, Partition};
use crate::judge::{CLAIM_GRACE, is_clear};
use crate::lanes::Phase;
use crate::partition::Part;
use crate::shared::{Effects, Shared};
use laneway_wire::{EndpointId, Timestamp};
use std::collections::BTreeMap;
use std::time::Duration;

/// Instances ask for the next probe within so many ms of each other.
pub(crate) const PROBE_SPREAD_MS: u64 = 200;
/// A probe that found no free slot is tried again after this.
const PROBE_WAIT: Duration = Duration::from_millis(100);

impl Core {
    /// The view of all endpoints' health. An older one than the last changes nothing.
    pub(crate) fn health(
        &mut self,
        read_at: Timestamp,
        listed: Vec<(EndpointId, Timestamp)>,
        fx: &mut Effects,
    ) -> bool {
        let sh = &mut self.sh;
        if sh.view.is_some_and(|view| read_at < view) {
            return false;
        }
        if !sh.is_view_fresh() {
            // Nothing was sent meanwhile.
            for part in self.parts.values() {
                part.begin_paces(sh);
            }
        }
        sh.view = Some(read_at);
        let listed: BTreeMap<Ep, Timestamp> = listed
            .into_iter()
            .map(|(id, probe_until)| (sh.endpoints.intern(id), probe_until))
            .collect();
        for ep in sh.endpoints.degraded.clone() {
            if listed.contains_key(&ep) {
                continue;
            }
            let entry = sh.endpoints.at(ep);
            entry.degraded_view = false;
            // What this core has just said may be on its way into the view.
            let settled = |said: Timestamp| read_at >= said + sh.limits.health_view_max_age;
            if entry.degraded_here.is_none_or(settled) {
                entry.degraded_here = None;
                entry.alive();
                sh.endpoints.degraded.remove(&ep);
                sh.recheck.push(ep);
            }
        }
        for (ep, probe_until) in listed {
            let entry = sh.endpoints.at(ep);
            let was = entry.is_degraded();
            entry.degraded_view = true;
            entry.degraded_here = None;
            entry.probe_until = probe_until;
            if !was {
                sh.endpoints.degraded.insert(ep);
                sh.changed.push(ep);
            }
        }
        for ep in self.sh.endpoints.degraded.clone() {
            self.ask_probe(ep, fx);
        }
        true
    }

    /// Claims the probe of a degraded endpoint if it is time and there is something to send.
    pub(crate) fn ask_probe(&mut self, ep: Ep, fx: &mut Effects) {
        let sh = &mut self.sh;
        let fresh = sh.is_view_fresh();
        let full = sh.in_flight + sh.claims >= sh.limits.max_in_flight;
        let now = sh.now;
        let entry = sh.endpoints.at(ep);
        let idle = entry.live_lanes + entry.parked_lanes == 0;
        let wanted = entry.is_degraded() && entry.state == EndpointState::Enabled && !idle;
        if !wanted || entry.claim.is_some() || entry.probing.is_some() || !fresh {
            return;
        }
        let at = entry.next_probe();
        if at > now {
            return sh.set_probe_timer(ep, at);
        }
        if full {
            return sh.set_probe_timer(ep, now + PROBE_WAIT);
        }
        let (endpoint, timeout) = (entry.id, entry.timeout);
        let clock = sh.next_clock();
        let salt = u128::from(sh.last_epoch);
        let entry = sh.endpoints.at(ep);
        entry.claim = Some(Claim { clock, at: now });
        entry.claims = entry.claims.wrapping_add(1);
        let draw = hash::of(entry.id.as_uuid().as_u128() ^ salt, entry.claims);
        entry.probe_wait = Duration::from_millis(draw % PROBE_SPREAD_MS);
        sh.claims += 1;
        fx.push(Effect::ClaimProbe { endpoint, timeout });
    }

    /// The answer to a claim: its head goes out now, exempt from its backoff, or the claim ends.
    pub(crate) fn probe_claimed(
        &mut self,
        endpoint: EndpointId,
        head: Option<(Partition, Epoch, ParkedEvent)>,
        probe_until: Timestamp,
        fx: &mut Effects,
    ) -> bool {
        let sh = &mut self.sh;
        let Some(ep) = sh.endpoints.find(endpoint) else { return false };
        let now = sh.now;
        let next = now + sh.limits.probe_every;
        let entry = sh.endpoints.at(ep);
        let Some(claim) = entry.claim.take() else { return false };
        sh.claims -= 1;
        entry.probe_until = probe_until;
        let Some((partition, epoch, head)) = head else {
            // Asked a little too early, it does not lose its turn.
            entry.probe_rests = now + PROBE_WAIT;
            let next = entry.next_probe();
            sh.set_probe_timer(ep, next);
            return true;
        };
        let may = entry.is_degraded()
            && entry.state == EndpointState::Enabled
            && now.since(claim.at) <= CLAIM_GRACE
            && sh.is_view_fresh();
        let part = self.parts.get_mut(&partition);
        let sent = part.filter(|part| may && part.epoch == epoch && part.is_active()).is_some_and(
            |part| {
                let Some(index) = part.load_head(sh, claim.clock, head, |_, _| true) else {
                    return false;
                };
                sh.endpoints.at(ep).probing = Some(claim.at);
                part.start_probe(sh, index, fx)
            },
        );
        if !sent {
            let entry = sh.endpoints.at(ep);
            entry.probing = None;
            entry.probe_until = next;
            entry.probe_rests = next;
            fx.push(Effect::ProbeEnded { endpoint, alive: false });
            sh.set_probe_timer(ep, next);
        }
        true
    }
}

impl Part {
    /// Sends the probe's head if it is one to be sent; otherwise does what is to be done with it.
    fn start_probe(&mut self, sh: &mut Shared, index: u32, fx: &mut Effects) -> bool {
        let lane = self.lanes.at(index);
        let ep = lane.ep;
        let hold = sh.endpoints.get(ep).on_unknown != OnUnknown::Resend;
        // A probe is exempt from the backoff, not from the time in which the last request may still travel (P1).
        let unsendable = lane.head.as_ref().is_none_or(|head| {
            head.settled || head.unknown || (head.open_intent && hold) || !is_clear(sh, head)
        });
        if unsendable {
            self.rouse(sh, index, fx);
            return false;
        }
        self.start(sh, index, true, fx);
        self.lanes
            .get(index)
            .is_some_and(|lane| matches!(lane.phase, Phase::InFlight { .. } | Phase::Intent { .. }))
    }
}
