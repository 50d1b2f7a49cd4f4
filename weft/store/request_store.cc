#include "weft/store/request_store.h"

#include "weft/base/error.h"

namespace weft::store::internal {

// Checks the request, and throws the error of the answer.
Response RequestStore::ask(Request request, Deadline deadline) {
  check_limits(request);
  const bool waits = request.op == Op::kWait;
  Response response = call(std::move(request), deadline);
  if (response.status == Status::kInvalid)
    throw Error(Errc::kInvalidArgument, response.text, {"store", -1, -1});
  if (response.status == Status::kFull) throw FullStore(response.text);
  if (response.status == Status::kTimeout && !waits)
    throw Error(Errc::kTimeout, response.text, {"store", -1, -1});
  return response;
}

std::optional<Value> RequestStore::get(const std::string& key, Deadline deadline) {
  return ask({.op = Op::kGet, .key = key}, deadline).value;
}

Revision RequestStore::set(const Write& write, Deadline deadline) {
  return ask({.op = Op::kSet, .key = write.key, .value = write.value, .lease = write.lease},
             deadline)
      .revision;
}

Swap RequestStore::compare_and_set(const Write& write, Revision expected, Deadline deadline) {
  Response response = ask({.op = Op::kCompareAndSet,
                           .key = write.key,
                           .value = write.value,
                           .lease = write.lease,
                           .revision = expected},
                          deadline);
  if (response.status == Status::kNotDone) return {false, std::move(response.value)};
  return {true, Value{write.value, response.revision}};
}

std::int64_t RequestStore::add(const std::string& key, std::int64_t delta, Deadline deadline) {
  return ask({.op = Op::kAdd, .key = key, .number = delta}, deadline).number;
}

Revision RequestStore::append(const std::string& key, const std::string& bytes, Deadline deadline) {
  return ask({.op = Op::kAppend, .key = key, .value = bytes}, deadline).revision;
}

bool RequestStore::erase(const std::string& key, Deadline deadline) {
  return ask({.op = Op::kErase, .key = key}, deadline).status == Status::kDone;
}

Listing RequestStore::list(const std::string& prefix, Deadline deadline) {
  Response response = ask({.op = Op::kList, .key = prefix}, deadline);
  return {std::move(response.items), response.revision};
}

std::optional<Listing> RequestStore::wait(const std::string& prefix, Revision since,
                                          Deadline deadline) {
  Response response = ask({.op = Op::kWait, .key = prefix, .revision = since}, deadline);
  if (response.status != Status::kDone) return std::nullopt;
  return Listing{std::move(response.items), response.revision};
}

LeaseId RequestStore::grant(std::chrono::milliseconds ttl, Deadline deadline) {
  return static_cast<LeaseId>(ask({.op = Op::kGrant, .number = ttl.count()}, deadline).number);
}

bool RequestStore::keep_alive(LeaseId lease, Deadline deadline) {
  return ask({.op = Op::kKeepAlive, .lease = lease}, deadline).status == Status::kDone;
}

bool RequestStore::revoke(LeaseId lease, Deadline deadline) {
  return ask({.op = Op::kRevoke, .lease = lease}, deadline).status == Status::kDone;
}

}  // namespace weft::store::internal
