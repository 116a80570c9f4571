//! What decides in a rewind (design section 6): how far a page of a command gets, and which numbers and ids the
//! deliveries get that repeat others. What is read before and written after is the shell's.

use laneway_wire::{DeliveryId, EndpointId, EventId, RewindId};

/// A dead letter that a page has found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found {
    /// Its place among all dead letters: in a lane, its lane's order.
    pub place: i64,
    /// The delivery that was given up.
    pub delivery: DeliveryId,
    /// Where it should have gone.
    pub endpoint: EndpointId,
}

/// What a page does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Page {
    /// So many of the first that were found.
    pub take: usize,
    /// The place that the command goes on behind; `None`: all of it is done.
    pub position: Option<i64>,
}

/// How far a page gets: up to the first dead letter whose endpoint is `full`, so that nothing overtakes it. `found` is in
/// the order of places; `last`: nothing else is meant. `None`: already the first has to wait.
pub fn page(found: &[Found], last: bool, full: impl Fn(EndpointId) -> bool) -> Option<Page> {
    let end = found.iter().position(|found| full(found.endpoint));
    let take = match end {
        Some(0) => return None,
        Some(end) => end,
        None => found.len(),
    };
    let whole = last && end.is_none();
    let position = found[..take].last().map(|found| found.place).filter(|_| !whole);
    Some(Page { take, position })
}

/// A delivery that is to be repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Original {
    /// Its event.
    pub event: EventId,
    /// Where it goes.
    pub endpoint: EndpointId,
    /// The delivery itself.
    pub delivery: DeliveryId,
}

/// The delivery that repeats another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Repeat {
    /// Its id.
    pub delivery: DeliveryId,
    /// 1 for the first rewind of this event to this endpoint.
    pub number: u32,
}

/// Gives each original the next number of its event at its endpoint, and the id that follows from it. `last` tells the
/// highest number there is; two originals of one event get two numbers, in their order.
pub fn number(
    rewind: RewindId,
    originals: &[Original],
    last: impl Fn(EventId, EndpointId) -> u32,
) -> Vec<Repeat> {
    let mut given = std::collections::HashMap::new();
    let repeat = |original: &Original| {
        let Original { event, endpoint, .. } = *original;
        let number = given.entry((event, endpoint)).or_insert_with(|| last(event, endpoint));
        *number += 1;
        let delivery = DeliveryId::derive(event, endpoint, *number, rewind.as_uuid());
        Repeat { delivery, number: *number }
    };
    originals.iter().map(repeat).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    fn found(place: i64, endpoint: u128) -> Found {
        Found {
            place,
            delivery: DeliveryId::from_uuid(Uuid::from_u128(place.unsigned_abs().into())),
            endpoint: EndpointId::from_uuid(Uuid::from_u128(endpoint)),
        }
    }

    #[test]
    fn a_page_ends_before_a_full_endpoint() {
        let all = [found(3, 1), found(5, 2), found(9, 1)];
        let full = |of: u128| move |endpoint: EndpointId| endpoint.as_uuid().as_u128() == of;
        assert_eq!(page(&all, true, full(0)), Some(Page { take: 3, position: None }));
        assert_eq!(page(&all, false, full(0)), Some(Page { take: 3, position: Some(9) }));
        assert_eq!(page(&all, true, full(2)), Some(Page { take: 1, position: Some(3) }));
        assert_eq!(page(&all, true, full(1)), None);
        assert_eq!(page(&[], true, full(1)), Some(Page { take: 0, position: None }));
    }

    #[test]
    fn numbers_go_on_where_they_were() {
        let id = |n: u128| Uuid::from_u128(n);
        let original = |event: u128, endpoint: u128| Original {
            event: EventId::from_uuid(id(event)),
            endpoint: EndpointId::from_uuid(id(endpoint)),
            delivery: DeliveryId::from_uuid(id(9)),
        };
        let originals = [original(1, 1), original(2, 1), original(1, 1), original(1, 2)];
        let rewind = RewindId::from_uuid(id(7 << 80));
        let last = |event: EventId, endpoint: EndpointId| {
            u32::from((event, endpoint) == (originals[0].event, originals[0].endpoint)) * 4
        };
        let repeats = number(rewind, &originals, last);
        assert_eq!(repeats.iter().map(|repeat| repeat.number).collect::<Vec<_>>(), [5, 1, 6, 1]);
        let ids: std::collections::HashSet<_> = repeats.iter().map(|r| r.delivery).collect();
        assert_eq!(ids.len(), 4);
        let of = |event: u128, number| {
            let (event, endpoint) = (EventId::from_uuid(id(event)), originals[0].endpoint);
            DeliveryId::derive(event, endpoint, number, rewind.as_uuid())
        };
        assert_eq!((repeats[0].delivery, repeats[2].delivery), (of(1, 5), of(1, 6)));
    }
}
