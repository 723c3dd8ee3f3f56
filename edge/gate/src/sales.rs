//! What the gate knows about its sales: settings, keys, the authority's last word, permits.

use crate::{
    lease::LeaseBook,
    limits::{FLIGHT_LOST_MS, KEY_REFETCH_MS, SALE_REFETCH_MS, SALES_MAX, UNKNOWN_SALE_MS, UNKNOWN_SALES_MAX},
};
use flashgate_shared::{
    UnixMs,
    sale::{SalePhase, SaleState},
    token::KeySet,
    wire::{EdgeSale, LeaseAnswer, LeaseKind},
};
use std::{cell::RefCell, collections::BTreeMap, rc::Rc};

/// One sale, as this instance knows it.
#[derive(Debug)]
pub(crate) struct Sale {
    /// The last good settings.
    pub(crate) doc: EdgeSale,
    /// The keys in them.
    pub(crate) keys: KeySet,
    /// The newest lease answer named other keys: one came, or one is to be believed no more.
    keys_differ: bool,
    /// The operator's state, by the newest word of the authority.
    state: SaleState,
    /// Every bucket is known to hold zero.
    sold_out: bool,
    /// The settings' version in the newest lease answer.
    known_version: i64,
    claim: LeaseBook,
    enter: LeaseBook,
    /// When the settings were last asked for, and whether that is still under way.
    asked_at_ms: UnixMs,
    asking: bool,
    /// When they were last fetched for the sake of a key that is not in them.
    key_asked_at_ms: Option<UnixMs>,
    /// For giving the least used away.
    used_at_ms: UnixMs,
}

impl Sale {
    /// A sale from its settings; `None` when they cannot be used.
    pub(crate) fn new(doc: EdgeSale, now_ms: UnixMs) -> Option<Self> {
        doc.sale.validate().ok()?;
        let keys = KeySet::from_json(&doc.jwks).ok()?;
        Some(Self {
            state: doc.state,
            sold_out: false,
            known_version: doc.sale.version,
            doc,
            keys,
            keys_differ: false,
            claim: LeaseBook::default(),
            enter: LeaseBook::default(),
            asked_at_ms: now_ms,
            asking: false,
            key_asked_at_ms: None,
            used_at_ms: now_ms,
        })
    }

    /// The permits of one kind.
    pub(crate) fn book(&mut self, kind: LeaseKind) -> &mut LeaseBook {
        match kind {
            LeaseKind::Claim => &mut self.claim,
            LeaseKind::Enter => &mut self.enter,
        }
    }

    /// What a buyer meets now, by the authority's clock.
    pub(crate) fn phase(&self, authority_now_ms: UnixMs) -> SalePhase {
        self.doc.sale.phase(self.state, authority_now_ms, self.sold_out)
    }

    /// The state that a lease answer tells.
    pub(crate) fn hear(&mut self, answer: &LeaseAnswer) {
        self.state = answer.state;
        self.sold_out = answer.sold_out;
        self.known_version = answer.config_version;
        self.keys_differ = answer.key_ids.as_ref().is_some_and(|ids| *ids != self.keys.ids());
    }

    /// The origin answered "sold out" to a claim: holds until the next lease says otherwise.
    pub(crate) fn hear_sold_out(&mut self) {
        self.sold_out = true;
    }

    /// Whether the settings are to be fetched again, because a lease answer named another version or other keys.
    /// Rarely, and by one request at a time.
    pub(crate) fn is_outdated(&self, now_ms: UnixMs) -> bool {
        let since = self.asked_at_ms;
        let lately = (since..since.saturating_add(SALE_REFETCH_MS)).contains(&now_ms);
        !lately && !self.is_under_way(now_ms) && (self.known_version != self.doc.sale.version || self.keys_differ)
    }

    /// Whether the settings may be fetched because a token names a key that is not in them: however young
    /// they are, since keys change without a new version; but not for every forged name.
    pub(crate) fn may_ask_for_key(&self, now_ms: UnixMs) -> bool {
        let lately = self.key_asked_at_ms.is_some_and(|at| (at..at.saturating_add(KEY_REFETCH_MS)).contains(&now_ms));
        !lately && !self.is_under_way(now_ms)
    }

    fn is_under_way(&self, now_ms: UnixMs) -> bool {
        let since = self.asked_at_ms;
        self.asking && (since..since.saturating_add(FLIGHT_LOST_MS)).contains(&now_ms)
    }

    /// They are about to be fetched for that reason.
    pub(crate) fn ask_for_key(&mut self, now_ms: UnixMs) {
        self.key_asked_at_ms = Some(now_ms);
    }

    /// The settings are being fetched.
    pub(crate) fn begin_fetch(&mut self, now_ms: UnixMs) {
        self.asking = true;
        self.asked_at_ms = now_ms;
    }

    /// That ended, one way or the other.
    pub(crate) fn end_fetch(&mut self) {
        self.asking = false;
    }

    /// New settings; older or unusable ones change nothing.
    pub(crate) fn replace(&mut self, doc: EdgeSale) {
        let usable =
            doc.sale.id == self.doc.sale.id && doc.sale.version >= self.doc.sale.version && doc.sale.validate().is_ok();
        if let (true, Ok(keys)) = (usable, KeySet::from_json(&doc.jwks)) {
            // A lease may have told of a later version already: what it said of the state is newer too.
            if doc.sale.version >= self.known_version {
                self.state = doc.state;
                self.known_version = doc.sale.version;
            }
            self.keys = keys;
            self.keys_differ = false;
            self.doc = doc;
        }
    }
}

/// The sales an instance knows, and the ids it knows to be none. Both bounded.
#[derive(Default)]
pub(crate) struct Sales {
    known: BTreeMap<Box<str>, Rc<RefCell<Sale>>>,
    /// Until when an id is held for unknown.
    unknown: BTreeMap<Box<str>, UnixMs>,
    /// Ids that are being asked about, since when.
    asking: BTreeMap<Box<str>, UnixMs>,
}

impl Sales {
    /// A known sale.
    pub(crate) fn get(&self, id: &str, now_ms: UnixMs) -> Option<Rc<RefCell<Sale>>> {
        let sale = self.known.get(id)?;
        if let Ok(mut sale) = sale.try_borrow_mut() {
            sale.used_at_ms = now_ms;
        }
        Some(sale.clone())
    }

    /// Whether the id was lately said to be none.
    pub(crate) fn is_unknown(&self, id: &str, now_ms: UnixMs) -> bool {
        self.unknown.get(id).is_some_and(|until| (until.saturating_sub(UNKNOWN_SALE_MS)..*until).contains(&now_ms))
    }

    /// Adds a sale; the least used is given away when there are too many.
    pub(crate) fn insert(&mut self, id: &str, sale: Sale) -> Rc<RefCell<Sale>> {
        if self.known.len() >= SALES_MAX {
            let oldest = self
                .known
                .iter()
                .min_by_key(|(_, sale)| sale.try_borrow().map_or(UnixMs::MAX, |s| s.used_at_ms))
                .map(|(id, _)| id.clone());
            if let Some(id) = oldest {
                self.known.remove(&id);
            }
        }
        let sale = Rc::new(RefCell::new(sale));
        self.known.insert(id.into(), sale.clone());
        self.unknown.remove(id);
        sale
    }

    /// Notes that there is no such sale.
    pub(crate) fn insert_unknown(&mut self, id: &str, now_ms: UnixMs) {
        self.unknown.retain(|_, until| *until > now_ms);
        if self.unknown.len() >= UNKNOWN_SALES_MAX {
            self.unknown.pop_first();
        }
        self.unknown.insert(id.into(), now_ms.saturating_add(UNKNOWN_SALE_MS));
    }

    /// Whether somebody asks about this id at the moment.
    pub(crate) fn is_asking(&self, id: &str, now_ms: UnixMs) -> bool {
        self.asking.get(id).is_some_and(|since| (*since..since.saturating_add(FLIGHT_LOST_MS)).contains(&now_ms))
    }

    /// Notes that somebody asks. Bounded by the budget for such questions.
    pub(crate) fn begin(&mut self, id: &str, now_ms: UnixMs) {
        self.asking.retain(|_, since| since.saturating_add(FLIGHT_LOST_MS) > now_ms);
        self.asking.insert(id.into(), now_ms);
    }

    /// The question ended.
    pub(crate) fn end(&mut self, id: &str) {
        self.asking.remove(id);
    }

    /// How many ids of each sort are held; for the tests of their bounds.
    #[cfg(test)]
    fn sizes(&self) -> (usize, usize) {
        (self.known.len(), self.unknown.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn doc(id: &str, version: i64) -> EdgeSale {
        serde_json::from_value(serde_json::json!({
            "sale": {
                "id": id, "version": version, "title": "T", "price": {"amount_minor": 1, "currency": "EUR"},
                "total": 10, "per_buyer_limit": 1, "opens_at_ms": 1000, "closes_at_ms": 2000, "buckets": 1,
                "admit_factor": 5.0, "enter_rate_per_s": 10.0, "pay_window_ms": 1, "grace_ms": 1,
                "second_try": false, "anonymous_entry": true, "backlog_limit": 10
            },
            "state": "open", "jwks": {"keys": []}, "issuer": "i", "now_ms": 5
        }))
        .unwrap()
    }

    #[test]
    fn sales_and_unknown_ids_are_bounded() {
        let mut sales = Sales::default();
        for n in 0..(2 * SALES_MAX as i64) {
            let id = format!("s-{n}");
            sales.insert(&id, Sale::new(doc(&id, 1), n).unwrap());
        }
        for n in 0..(2 * UNKNOWN_SALES_MAX) {
            sales.insert_unknown(&format!("u-{n}"), 0);
        }
        assert_eq!(sales.sizes(), (SALES_MAX, UNKNOWN_SALES_MAX));
        assert!(sales.get("s-127", 200).is_some(), "the newest stay");
        assert!(sales.get("s-0", 200).is_none());
        sales.insert_unknown("x", 5);
        assert!(sales.is_unknown("x", 6) && !sales.is_unknown("x", 5 + UNKNOWN_SALE_MS));
    }

    #[test]
    fn settings_are_fetched_again_when_their_version_differs_and_not_all_the_time() {
        let mut sale = Sale::new(doc("s", 1), 0).unwrap();
        assert!(!sale.is_outdated(SALE_REFETCH_MS));
        sale.known_version = 2;
        assert!(sale.is_outdated(SALE_REFETCH_MS));
        sale.begin_fetch(SALE_REFETCH_MS);
        assert!(!sale.is_outdated(2 * SALE_REFETCH_MS), "one at a time");
        sale.end_fetch();
        sale.replace(doc("other", 9));
        assert_eq!(sale.doc.sale.version, 1);
        sale.replace(doc("s", 2));
        assert!(!sale.is_outdated(9 * SALE_REFETCH_MS));
        sale.replace(doc("s", 1));
        assert_eq!(sale.doc.sale.version, 2, "an older document changes nothing");
    }

    #[test]
    fn an_unknown_key_is_asked_for_at_once_and_then_rarely() {
        let mut sale = Sale::new(doc("s", 1), 0).unwrap();
        assert!(sale.may_ask_for_key(1), "however young the settings are");
        sale.ask_for_key(1);
        sale.begin_fetch(1);
        sale.end_fetch();
        assert!(!sale.may_ask_for_key(KEY_REFETCH_MS) && sale.may_ask_for_key(1 + KEY_REFETCH_MS));
        sale.begin_fetch(1 + KEY_REFETCH_MS);
        assert!(!sale.may_ask_for_key(1 + KEY_REFETCH_MS), "one at a time");
        assert!(sale.may_ask_for_key(-5_000), "a clock that was set back forgets");
    }

    #[test]
    fn unusable_settings_make_no_sale() {
        let mut bad = doc("s", 1);
        bad.sale.closes_at_ms = 0;
        assert!(Sale::new(bad, 0).is_none());
        let mut bad = doc("s", 1);
        bad.jwks = serde_json::json!({"keys": [{"kty": "RSA"}]});
        assert!(Sale::new(bad, 0).is_none());
    }
}
