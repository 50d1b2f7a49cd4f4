// What clients ask of a store process and what it answers, and their bytes on the wire. Requests
// that change the store are also the commands of the replicated log.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "weft/store/store.h"

namespace weft::store::internal {

enum class Op : std::uint8_t {
  kGet,
  kList,
  kWait,
  kStatus,  // what this store process knows (status.h), as `value`
  kSet,
  kCompareAndSet,
  kAdd,
  kAppend,
  kErase,
  kGrant,
  kKeepAlive,
  kRevoke,
  kEndSession,  // the client has ended: its last answer need not be kept; has no answer
  kExpire,      // of the leader: a lease has ended, unless it was kept alive in the meantime
};

// True if the operation changes the store.
bool is_write(Op op);

struct Request {
  Op op = Op::kGet;
  // Chosen at random by the client, and counted by it from 1: a request that arrives again with the
  // same numbers is not applied again.
  std::uint64_t client = 0;
  std::uint64_t sequence = 0;
  std::string key;    // or prefix
  std::string value;  // or the bytes to append
  LeaseId lease = 0;
  Revision revision = 0;      // kCompareAndSet: expected; kWait: since; kExpire: renewals seen
  std::int64_t number = 0;    // kAdd: delta; kGrant: milliseconds
  std::uint32_t wait_ms = 0;  // time until the client's deadline
  bool operator==(const Request&) const = default;
};

enum class Status : std::uint8_t {
  kDone,
  kNotDone,  // the expected "no": absent key, other revision, ended lease
  kInvalid,  // Errc::kInvalidArgument, with `text`
  kTimeout,  // Errc::kTimeout, with `text`; kWait: nothing has changed
  kFull,     // FullStore, with `text`
};

struct Response {
  Status status = Status::kDone;
  std::uint64_t sequence = 0;  // of the request
  Revision revision = 0;
  std::int64_t number = 0;  // kAdd: the sum; kGrant: the lease
  std::optional<Value> value;
  std::vector<Item> items;
  std::string text;
  bool operator==(const Response&) const = default;
};

// Fields and limits of store.h. Throws Error(kInvalidArgument), naming the limit.
void check_limits(const Request& request);

std::string encode(const Request& request);
std::string encode(const Response& response);
// Throw Error(kCorrupt) for bytes that encode() does not make.
Request decode_request(std::string_view bytes);
Response decode_response(std::string_view bytes);

}  // namespace weft::store::internal
