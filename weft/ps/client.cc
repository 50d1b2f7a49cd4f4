// A call opens one ticket and sends its requests for each shard; the ticket is answered when all of
// them are. Nothing happens in the background: only calls of the client move bytes
// (ClientRequests::advance()).
//
// Commands have numbers for each shard, and a shard applies them in this order. So push() and
// pull() need not wait for what was sent before. Only while differences are pulled, commands wait
// here (await_commands()): a server drops a command whose predecessor it has not applied, unless it
// is a pull of differences, too.
//
// define() works in this order: sizes of tensors and rows, one shared memory for both, places in
// it, requests. A connection hands over the descriptor of the memory, so the memory comes before
// the first request.
#include "weft/ps/client.h"

#include <algorithm>
#include <exception>

#include "weft/base/caught/caught.h"
#include "weft/net/stream/bytes.h"
#include "weft/ps/internal/client_requests.h"
#include "weft/ps/internal/client_rows.h"
#include "weft/ps/internal/client_tensors.h"

namespace weft::ps {

using internal::Answer;
using internal::Op;
using internal::Outstanding;
using internal::Request;

// The parts of a client, what concerns both tensors and rows, and checkpoints.
class Client::Impl {
 public:
  explicit Impl(ClientOptions options)
      : requests_(std::move(options),
                  [this](const Request& request, const Answer& answer, std::string_view payload,
                         bool is_wanted) { take(request, answer, payload, is_wanted); }) {}

  internal::ClientRequests& requests() { return requests_; }
  internal::ClientTensors& tensors() { return tensors_; }
  internal::ClientRows& rows() { return rows_; }
  void require_defined() const { WEFT_REQUIRE(is_defined_, "call define() first"); }
  void require_worker() const {
    require_defined();
    WEFT_REQUIRE(requests_.options().worker, "a client without a worker's number only pulls");
  }

  void define(const std::vector<Tensor>& tensors, const Options& options,
              const std::vector<TableSpec>& tables);
  void change_membership(Op op);
  void wait(Ticket ticket, Deadline deadline);
  Stats stats();
  std::string save();
  void load(const std::string& saved);

 private:
  std::uint32_t servers() const { return requests_.options().servers; }
  void take(const Request& request, const Answer& answer, std::string_view payload, bool is_wanted);
  void wait_or_forget(Ticket ticket, Deadline deadline);
  std::optional<std::string> save_shard(std::uint32_t shard, Deadline deadline);

  internal::ClientRequests requests_;
  internal::ClientTensors tensors_{requests_};
  internal::ClientRows rows_{requests_};
  bool is_defined_ = false;
  Stats stats_;
  std::string saved_;  // the last piece of a save
};

void Client::Impl::define(const std::vector<Tensor>& tensors, const Options& options,
                          const std::vector<TableSpec>& tables) {
  WEFT_REQUIRE(!is_defined_, "define() was called before");
  WEFT_REQUIRE(!tensors.empty() || !tables.empty(), "define() needs at least one tensor or table");
  check(options);
  rows_.define(tables);
  tensors_.define(tensors, options);
  requests_.share(tensors_.memory_bytes() + rows_.memory_bytes());
  rows_.place(tensors_.memory_bytes());
  is_defined_ = true;  // a refusal so far has sent nothing, so the call may be repeated
  const Ticket ticket = requests_.open_ticket();
  for (std::uint32_t i = 0; i < servers(); ++i) {
    internal::Definition definition = tensors_.definition_of(i, tensors);
    definition.tables = tables;
    Outstanding request = requests_.command(Op::kDefine, i);
    request.payload = encode(definition);
    requests_.send(i, std::move(request), ticket);
  }
  requests_.wait(ticket, requests_.patience());
}

void Client::Impl::change_membership(Op op) {
  require_worker();
  requests_.await_commands();
  // The servers may now have other values for this worker than it has itself. Its next pull of
  // differences starts with whole values.
  tensors_.forget_known();
  const Ticket ticket = requests_.open_ticket();
  for (std::uint32_t i = 0; i < servers(); ++i) requests_.send(i, requests_.command(op, i), ticket);
  requests_.wait(ticket, requests_.patience());
}

void Client::Impl::wait(Ticket ticket, Deadline deadline) {
  try {
    requests_.await(ticket, deadline);
  } catch (const std::exception& error) {
    rows_.abandon(ticket, as_error(error));
    throw;
  }
  const std::optional<Error> error = requests_.close(ticket);
  // The pull ends also with an error, so that the next one may begin. Its values then do not count.
  tensors_.finish(ticket, !error);
  if (error) throw Error(*error);
}

// After an error, an answer that comes later is ignored.
void Client::Impl::wait_or_forget(Ticket ticket, Deadline deadline) {
  try {
    requests_.wait(ticket, deadline);
  } catch (...) {
    requests_.forget(ticket);
    throw;
  }
}

void Client::Impl::take(const Request& request, const Answer& answer, std::string_view payload,
                        bool is_wanted) {
  // Also if nobody waits any more: the memory of the rows is free now.
  rows_.take(request, payload, is_wanted);
  if (internal::is_refused(answer)) return tensors_.take_refusal(request);
  if (!is_wanted) return;
  tensors_.take(request, answer, payload);
  if (request.op == Op::kSave) saved_ = std::string(payload);
  if (request.op != Op::kStats) return;
  const internal::ShardStats part = internal::decode_stats(payload);
  for (std::size_t i = 0; i < stats_.staleness.size(); ++i)
    stats_.staleness[i] += part.staleness[i];
  stats_.updates = std::max(stats_.updates, part.updates);
  stats_.memory_bytes += part.memory_bytes;
  stats_.file_bytes += part.file_bytes;
  stats_.rows += part.rows;
  stats_.workers = std::min(stats_.workers, part.workers);
}

Stats Client::Impl::stats() {
  stats_ = {};
  stats_.workers = ~0u;
  const Ticket ticket = requests_.open_ticket();
  for (std::uint32_t i = 0; i < servers(); ++i) {
    Outstanding request;
    request.request = requests_.read(Op::kStats, i);
    requests_.send(i, std::move(request), ticket);
  }
  wait_or_forget(ticket, requests_.patience());
  return stats_;
}

std::string Client::Impl::save() {
  const Deadline deadline = requests_.patience();
  net::internal::ByteWriter out;
  out.put(servers());
  for (std::uint32_t i = 0; i < servers(); ++i) {
    std::optional<std::string> shard;
    while (!(shard = save_shard(i, deadline)))
      requests_.sleep(Deadline::in(std::chrono::milliseconds(20)));
    out.put<std::uint64_t>(shard->size());
    out.put_bytes(*shard);
  }
  return out.take();
}

// None: the save was interrupted, and begins again.
std::optional<std::string> Client::Impl::save_shard(std::uint32_t shard, Deadline deadline) {
  net::internal::ByteWriter out;
  for (std::uint64_t piece = 0;; ++piece) {
    saved_.clear();
    const Ticket ticket = requests_.open_ticket();
    Outstanding request;
    request.request = requests_.read(Op::kSave, shard);
    // A save has no version: the field has the number of the piece.
    request.request.version = piece;
    requests_.send(shard, std::move(request), ticket);
    try {
      wait_or_forget(ticket, deadline);
    } catch (const Error& error) {
      if (error.code() == Errc::kAborted && !deadline.passed()) return std::nullopt;
      throw;
    }
    if (saved_.empty()) return out.take();
    out.put<std::uint64_t>(saved_.size());
    out.put_bytes(saved_);
  }
}

void Client::Impl::load(const std::string& saved) {
  std::vector<std::string_view> shards;
  try {
    net::internal::ByteReader in(saved);
    const auto count = in.take<std::uint32_t>();
    WEFT_REQUIRE(count == servers(), "this state was saved by " + std::to_string(count) +
                                         " servers, not " + std::to_string(servers()));
    for (std::uint32_t i = 0; i < count; ++i)
      shards.push_back(in.take_view(in.take<std::uint64_t>(), 1));
    in.expect_end();
  } catch (const Error& error) {
    if (error.code() != Errc::kCorrupt) throw;
    throw Error(Errc::kInvalidArgument, "this is not the state of a parameter server");
  }
  requests_.await_commands();
  const Ticket ticket = requests_.open_ticket();
  for (std::uint32_t i = 0; i < servers(); ++i) {
    Outstanding request = requests_.command(Op::kLoad, i);
    request.payload = shards[i];
    requests_.send(i, std::move(request), ticket);
  }
  requests_.wait(ticket, requests_.patience());
}

Client::Client(ClientOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {}
Client::~Client() = default;
void Client::define(const std::vector<Tensor>& tensors, const Options& options,
                    const std::vector<TableSpec>& tables) {
  impl_->define(tensors, options, tables);
}
void Client::join() { impl_->change_membership(Op::kJoin); }
void Client::leave() { impl_->change_membership(Op::kLeave); }
std::span<float> Client::gradient(const std::string& tensor) {
  return impl_->tensors().gradient(tensor);
}
Client::Ticket Client::push(const std::vector<std::string>& tensors, double lr, Coding coding) {
  impl_->require_worker();
  return impl_->tensors().push(tensors, lr, coding);
}
Client::Ticket Client::pull(const std::vector<std::string>& tensors, Coding coding) {
  impl_->require_defined();
  return impl_->tensors().pull(tensors, coding);
}
Client::Ticket Client::push_rows(const std::string& table, std::span<const std::uint64_t> keys,
                                 std::span<const float> gradients, double lr) {
  impl_->require_worker();
  return impl_->rows().push(table, keys, gradients, lr);
}
Client::Ticket Client::pull_rows(const std::string& table, std::span<const std::uint64_t> keys,
                                 std::span<float> rows) {
  impl_->require_defined();
  return impl_->rows().pull(table, keys, rows);
}
void Client::evict_rows(const std::string& table, std::uint64_t age) {
  impl_->require_worker();
  wait(impl_->rows().evict(table, age));
}
void Client::wait(Ticket ticket) { wait(ticket, impl_->requests().patience()); }
void Client::wait(Ticket ticket, Deadline deadline) { impl_->wait(ticket, deadline); }
bool Client::is_done(Ticket ticket) {
  impl_->requests().advance();
  return impl_->requests().is_answered(ticket);
}
std::span<const float> Client::value(const std::string& tensor) const {
  return impl_->tensors().value(tensor);
}
std::int64_t Client::clock() const { return impl_->requests().clock(); }
Stats Client::stats() { return impl_->stats(); }
Moved Client::moved() const { return impl_->requests().moved(); }
std::string Client::save() {
  impl_->require_defined();
  return impl_->save();
}
void Client::load(const std::string& saved) {
  impl_->require_defined();
  impl_->load(saved);
}

}  // namespace weft::ps
