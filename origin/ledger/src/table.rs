//! The table of design §7: what becomes of a claim that reached the ledger. Pure; first match wins.
//!
//! The book is what the ledger knew under the lock, and every judgement writes into it, so that earlier
//! messages of a batch count for later ones.

use flashgate_shared::{
    BuyerId, ClaimId, Epoch, HoldId, SaleId, envelope::ClaimEnvelope, limits, order::LostReason, sale::SaleConfig,
};
use std::collections::HashMap;

/// A claim that has a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Known {
    pub sale: SaleId,
    pub buyer: BuyerId,
    pub quantity: u32,
    pub hold: Option<HoldId>,
}

/// What a buyer had in the sale so far. Refused claims are no tries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Tries {
    pub live: bool,
    pub ended: bool,
}

/// Free units of one stock row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Room {
    pub shard: i16,
    pub free: i64,
}

/// What to do with a message; the numbers are the table's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Class {
    /// 0: write nothing, alarm, dead-letter.
    Mismatch(String),
    /// 1, and an older epoch's hold of a claim that has a row: write nothing.
    Repeat,
    /// 2, 4, 5, 6, or 7 of a dead letter: a refusal; `release` units go back to the gate, none at all
    /// when the rebuild's cut already counted them.
    Lost { reason: LostReason, release: Option<u32> },
    /// 3: the units go back; the claim's row stays.
    SecondHold,
    /// 7, counted in this stock row, to which free units come from others before: they had it only together.
    Reserve { shard: i16, moves: Vec<(i16, i64)> },
}

/// What the ledger knows, under the lock.
#[derive(Debug, Clone)]
pub(crate) struct Book<'a> {
    pub sale: &'a SaleConfig,
    pub epoch: Epoch,
    pub claims: HashMap<ClaimId, Known>,
    pub buyers: HashMap<BuyerId, Tries>,
    pub room: Vec<Room>,
    /// The row that is tried first.
    pub first: i16,
    /// The message comes from the dead letter queue: class 7 is refused as poison.
    pub dead: bool,
}

impl Book<'_> {
    /// Judges one message and writes the judgement into the book.
    pub fn judge(&mut self, message: &ClaimEnvelope) -> Class {
        let class = self.classify(message);
        if matches!(class, Class::Lost { .. } | Class::Reserve { .. }) {
            self.claims.insert(
                message.claim_id,
                Known {
                    sale: message.sale.clone(),
                    buyer: message.buyer.clone(),
                    quantity: message.quantity,
                    hold: Some(message.hold.clone()),
                },
            );
        }
        if let Class::Reserve { shard, moves } = &class {
            self.buyers.entry(message.buyer.clone()).or_default().live = true;
            for (from, units) in moves {
                self.change_room(*from, -units);
                self.change_room(*shard, *units);
            }
            self.change_room(*shard, -i64::from(message.quantity));
        }
        class
    }

    fn change_room(&mut self, shard: i16, units: i64) {
        for room in self.room.iter_mut().filter(|room| room.shard == shard) {
            room.free += units;
        }
    }

    fn classify(&self, message: &ClaimEnvelope) -> Class {
        // 0
        if let Some(what) = self.mismatch(message) {
            return Class::Mismatch(what);
        }
        // 1
        let known = self.claims.get(&message.claim_id);
        if known.is_some_and(|k| k.hold.as_ref() == Some(&message.hold)) {
            return Class::Repeat;
        }
        // 2: never a release, the cut already counted the unit
        if message.hold.epoch < self.epoch {
            return match known {
                Some(_) => Class::Repeat,
                None => lost(LostReason::GateRebuilt, None),
            };
        }
        // 3
        if known.is_some() {
            return Class::SecondHold;
        }
        let tries = self.buyers.get(&message.buyer).copied().unwrap_or_default();
        // 4
        if tries.live {
            return lost(LostReason::Duplicate, Some(message.quantity));
        }
        // 5
        if tries.ended && !self.sale.second_try {
            return lost(LostReason::SecondTry, Some(message.quantity));
        }
        // 6: only what never existed is burnt
        let quantity = i64::from(message.quantity);
        let free: i64 = self.room.iter().map(|r| r.free).sum();
        if quantity > free {
            return lost(LostReason::GateLeaked, Some(u32::try_from(free).unwrap_or(0)));
        }
        // 7
        if self.dead {
            return lost(LostReason::Poison, Some(message.quantity));
        }
        self.place(quantity)
    }

    /// Where an order is counted for which there is room: in the first row, else in the next that holds it, else
    /// in the first after all, with what others have left.
    fn place(&self, quantity: i64) -> Class {
        let first = self.room.iter().filter(|room| room.shard == self.first);
        if let Some(room) = first.chain(&self.room).find(|room| room.free >= quantity) {
            return Class::Reserve { shard: room.shard, moves: Vec::new() };
        }
        let mut missing = quantity - self.room.iter().filter(|r| r.shard == self.first).map(|r| r.free).sum::<i64>();
        let mut moves = Vec::new();
        for room in self.room.iter().filter(|room| room.shard != self.first && room.free > 0) {
            let units = room.free.min(missing);
            if units == 0 {
                break;
            }
            moves.push((room.shard, units));
            missing -= units;
        }
        Class::Reserve { shard: self.first, moves }
    }

    /// Class 0: what no gate of ours can have said.
    fn mismatch(&self, message: &ClaimEnvelope) -> Option<String> {
        if message.sale != self.sale.id {
            return Some(format!("a message of sale {} in the queue of {}", message.sale, self.sale.id));
        }
        if message.hold.epoch > self.epoch {
            return Some(format!("epoch {} is newer than the ledger's {}", message.hold.epoch, self.epoch));
        }
        if message.hold.bucket >= self.sale.buckets {
            return Some(format!("bucket {} of {}", message.hold.bucket, self.sale.buckets));
        }
        // The sale's own limit may have been lowered since the gate said yes: what it granted counts.
        if !(1..=limits::PER_BUYER_MAX).contains(&message.quantity) {
            return Some(format!("a quantity of {}", message.quantity));
        }
        if self.sale.price.times(message.quantity).is_none() {
            return Some(format!("the price of {} units does not fit", message.quantity));
        }
        let known = self.claims.get(&message.claim_id)?;
        if known.sale != message.sale {
            return Some(format!("the claim is of sale {}", known.sale));
        }
        let same_hold = known.hold.as_ref() == Some(&message.hold);
        let same_body = known.buyer == message.buyer && known.quantity == message.quantity;
        (same_hold && !same_body).then(|| "another buyer or quantity under the same claim and hold".to_owned())
    }
}

fn lost(reason: LostReason, release: Option<u32>) -> Class {
    Class::Lost { reason, release }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flashgate_shared::{envelope::ENVELOPE_VERSION, trace::TraceId};

    fn message(name: &str, quantity: u32) -> ClaimEnvelope {
        let (sale, buyer): (SaleId, BuyerId) = ("s".parse().unwrap(), name.parse().unwrap());
        ClaimEnvelope {
            v: ENVELOPE_VERSION,
            claim_id: ClaimId::derive(&sale, &buyer, &"k".parse().unwrap()),
            sale,
            buyer,
            quantity,
            hold: "1.0.1-1".parse().unwrap(),
            claimed_at_ms: 0,
            trace_id: TraceId::from_random(1),
        }
    }

    fn at(shard: i16) -> Class {
        Class::Reserve { shard, moves: Vec::new() }
    }

    #[test]
    fn an_order_goes_to_the_first_row_else_where_there_is_room_else_others_give_what_is_missing() {
        let sale: SaleConfig = serde_json::from_str(
            r#"{"id":"s","version":1,"title":"t","price":{"amount_minor":1,"currency":"EUR"},"total":5,
                "per_buyer_limit":5,"opens_at_ms":0,"closes_at_ms":1,"buckets":1,"shards":2,"admit_factor":5.0,
                "enter_rate_per_s":1.0,"pay_window_ms":1,"grace_ms":0,"second_try":false,"anonymous_entry":true,
                "backlog_limit":1}"#,
        )
        .unwrap();
        let room = vec![Room { shard: 0, free: 3 }, Room { shard: 1, free: 4 }];
        let (claims, buyers) = (HashMap::new(), HashMap::new());
        let mut book = Book { sale: &sale, epoch: 1, claims, buyers, room, first: 1, dead: false };
        assert_eq!(book.judge(&message("a", 1)), at(1));
        assert_eq!(book.judge(&message("b", 1)), at(1));
        assert_eq!(book.judge(&message("c", 3)), at(0), "the first is too full");
        assert_eq!(book.judge(&message("d", 1)), at(1));
        assert_eq!(book.judge(&message("e", 2)), lost(LostReason::GateLeaked, Some(1)));
        book.room = vec![Room { shard: 0, free: 2 }, Room { shard: 1, free: 3 }];
        book.first = 0;
        let moved = Class::Reserve { shard: 0, moves: vec![(1, 2)] };
        assert_eq!(book.judge(&message("f", 4)), moved, "no row holds it, both do");
        assert_eq!(book.room, [Room { shard: 0, free: 0 }, Room { shard: 1, free: 1 }]);
        assert_eq!(book.judge(&message("g", 1)), at(1));
        assert_eq!(book.judge(&message("h", 1)), lost(LostReason::GateLeaked, Some(0)));
    }
}
