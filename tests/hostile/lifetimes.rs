crate::cases![];
pub fn be_the_victim_if_asked() {}
