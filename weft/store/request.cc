#include "weft/store/request.h"

#include "weft/store/internal/bytes.h"

namespace weft::store::internal {

bool is_write(Op op) { return op >= Op::kSet; }

void check_limits(const Request& request) {
  const bool has_key =
      request.op == Op::kGet || (request.op >= Op::kSet && request.op <= Op::kErase);
  WEFT_REQUIRE(!has_key || !request.key.empty(), "a key of the store must not be empty");
  WEFT_REQUIRE(request.key.size() <= kMaxKeyBytes,
               "a key of the store has at most " + std::to_string(kMaxKeyBytes) +
                   " bytes; this one has " + std::to_string(request.key.size()));
  WEFT_REQUIRE(request.value.size() <= kMaxValueBytes,
               "a value of the store has at most " + std::to_string(kMaxValueBytes) +
                   " bytes; this one has " + std::to_string(request.value.size()));
  WEFT_REQUIRE(request.op != Op::kGrant ||
                   (request.number >= kMinLease.count() && request.number <= kMaxLease.count()),
               "a lease lasts from 100 ms to 24 hours; this one would last " +
                   std::to_string(request.number) + " ms");
}

std::string encode(const Request& request) {
  ByteWriter out;
  out.put(request.op);
  out.put(request.client);
  out.put(request.sequence);
  out.put_text(request.key);
  out.put_text(request.value);
  out.put(request.lease);
  out.put(request.revision);
  out.put(request.number);
  out.put(request.wait_ms);
  return out.take();
}

Request decode_request(std::string_view bytes) {
  ByteReader in(bytes);
  Request request;
  request.op = in.take_enum(Op::kExpire);
  request.client = in.take<std::uint64_t>();
  request.sequence = in.take<std::uint64_t>();
  request.key = in.take_text();
  request.value = in.take_text();
  request.lease = in.take<LeaseId>();
  request.revision = in.take<Revision>();
  request.number = in.take<std::int64_t>();
  request.wait_ms = in.take<std::uint32_t>();
  in.expect_end();
  return request;
}

std::string encode(const Response& response) {
  ByteWriter out;
  out.put(response.status);
  out.put(response.sequence);
  out.put(response.revision);
  out.put(response.number);
  out.put(static_cast<std::uint8_t>(response.value ? 1 : 0));
  if (response.value) {
    out.put_text(response.value->bytes);
    out.put(response.value->revision);
  }
  out.put(static_cast<std::uint32_t>(response.items.size()));
  for (const Item& item : response.items) {
    out.put_text(item.key);
    out.put_text(item.value.bytes);
    out.put(item.value.revision);
  }
  out.put_text(response.text);
  return out.take();
}

Response decode_response(std::string_view bytes) {
  enum class Has : std::uint8_t { kNo, kYes };
  ByteReader in(bytes);
  Response response;
  response.status = in.take_enum(Status::kFull);
  response.sequence = in.take<std::uint64_t>();
  response.revision = in.take<Revision>();
  response.number = in.take<std::int64_t>();
  if (in.take_enum(Has::kYes) == Has::kYes) {
    Value& value = response.value.emplace();
    value.bytes = in.take_text();
    value.revision = in.take<Revision>();
  }
  constexpr std::size_t kItemBytes = 16;
  const auto count = in.take_count(kItemBytes);
  response.items.reserve(count);
  for (std::uint32_t i = 0; i < count; ++i) {
    Item& item = response.items.emplace_back();
    item.key = in.take_text();
    item.value.bytes = in.take_text();
    item.value.revision = in.take<Revision>();
  }
  response.text = in.take_text();
  in.expect_end();
  return response;
}

}  // namespace weft::store::internal
