#include "messages/store_protocol.hpp"

#include "messages/wire_parts.hpp"

namespace hicache::wire {

namespace {

/// Settings and sentences of others.
std::string long_text(capnp::Text::Reader from) {
  return text(from, size_t{64} << 10);
}

void write_slot(const store_slot& x, schema::StoreSlot::Builder to) {
  write(x.key, to.initKey());
  write(x.parent, to.initParent());
  to.setOffset(x.offset);
  to.setBytes(x.bytes);
}

void read_slot(schema::StoreSlot::Reader from, store_slot& x) {
  read(from.getKey(), x.key);
  read(from.getParent(), x.parent);
  x.offset = from.getOffset();
  x.bytes = from.getBytes();
}

void write_outcome(const store_outcome& x, schema::StoreOutcome::Builder to) {
  to.setStatus(static_cast<schema::StoreStatus>(x.status));
  to.setBytes(x.bytes);
  to.setDetail(x.detail);
}

void read_outcome(schema::StoreOutcome::Reader from, store_outcome& x) {
  KJ_REQUIRE(from.getStatus() <= schema::StoreStatus::MISFIT, "no such status");
  x = {static_cast<store_status>(from.getStatus()), from.getBytes(), long_text(from.getDetail())};
}

void write_listed(const store_listed& x, schema::StoreListed::Builder to) {
  write(x.key, to.initKey());
  to.setBytes(x.bytes);
}

void read_listed(schema::StoreListed::Reader from, store_listed& x) {
  read(from.getKey(), x.key);
  x.bytes = from.getBytes();
}

} // namespace

void write(const store_hello& x, schema::StoreHello::Builder to) {
  to.setVersion(x.version);
  to.setWindowBytes(x.window_bytes);
  to.setOptions(x.options);
}

void read(schema::StoreHello::Reader from, store_hello& x) {
  x = {from.getVersion(), from.getWindowBytes(), long_text(from.getOptions())};
}

void write(const store_welcome& x, schema::StoreWelcome::Builder to) {
  to.setError(x.error);
  to.setName(x.name);
  to.setSurvivesRestarts(x.survives_restarts);
  to.setIsShared(x.is_shared);
  to.setTellsLengths(x.tells_lengths);
  to.setPreferredBatch(x.preferred_batch);
  to.setPreferredObjectBytes(x.preferred_object_bytes);
  to.setRemoves(x.removes);
  to.setLists(x.lists);
}

void read(schema::StoreWelcome::Reader from, store_welcome& x) {
  x = {long_text(from.getError()),
       text(from.getName()),
       from.getSurvivesRestarts(),
       from.getIsShared(),
       from.getTellsLengths(),
       from.getPreferredBatch(),
       from.getPreferredObjectBytes(),
       from.getRemoves(),
       from.getLists()};
}

void write(const store_request& x, schema::StoreRequest::Builder to) {
  to.setNumber(x.number);
  to.setKind(static_cast<schema::StoreRequestKind>(x.kind));
  to.setMilliseconds(x.milliseconds);
  write_each(x.objects, to.initObjects(size_of(x.objects)), write_slot);
  to.setStart(x.start);
}

void read(schema::StoreRequest::Reader from, store_request& x) {
  KJ_REQUIRE(from.getKind() <= schema::StoreRequestKind::LIST, "no such call");
  x.number = from.getNumber();
  x.kind = static_cast<store_request_kind>(from.getKind());
  x.milliseconds = from.getMilliseconds();
  read_each(from.getObjects(), store_request_objects, x.objects, read_slot);
  x.start = long_text(from.getStart());
}

void write(const store_answer& x, schema::StoreAnswer::Builder to) {
  to.setNumber(x.number);
  to.setError(x.error);
  write_each(x.objects, to.initObjects(size_of(x.objects)), write_outcome);
  to.setIsOk(x.is_ok);
  to.setDetail(x.detail);
  write_each(x.listed, to.initListed(size_of(x.listed)), write_listed);
  to.setNext(x.next);
}

void read(schema::StoreAnswer::Reader from, store_answer& x) {
  x.number = from.getNumber();
  x.error = long_text(from.getError());
  read_each(from.getObjects(), store_request_objects, x.objects, read_outcome);
  x.is_ok = from.getIsOk();
  x.detail = long_text(from.getDetail());
  read_each(from.getListed(), store_request_objects, x.listed, read_listed);
  x.next = long_text(from.getNext());
}

HICACHE_DEFINE_CODEC(store_hello, StoreHello)
HICACHE_DEFINE_CODEC(store_welcome, StoreWelcome)
HICACHE_DEFINE_CODEC(store_request, StoreRequest)
HICACHE_DEFINE_CODEC(store_answer, StoreAnswer)

} // namespace hicache::wire
