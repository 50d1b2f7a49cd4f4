#include "weft/ps/client.h"

#include <poll.h>

#include <algorithm>
#include <cmath>

#include "weft/base/random.h"
#include "weft/net/stream/bytes.h"
#include "weft/ps/internal/client_impl.h"
#include "weft/ps/internal/codecs.h"
#include "weft/ps/internal/connections.h"
#include "weft/ps/job.h"

namespace weft::ps {
namespace {

using internal::Answer;
using internal::ClientLink;
using internal::codec_of;
using internal::Op;
using internal::Outstanding;

constexpr std::size_t kLine = 64;
constexpr std::uint64_t kValueAreas = 2;
// Longest sleep with and without a connection to every server, in milliseconds.
constexpr int kSleep = 50, kSleepUnconnected = 5;

// With the servers of this job, if the caller gave no directory.
ClientOptions complete(ClientOptions options, std::unique_ptr<Directory>& directory) {
  if (options.directory != nullptr) return options;
  const ClientOptions job = job_client();
  directory = job_directory(kJobServers);
  options.directory = directory.get();
  options.servers = job.servers;
  if (!options.secret) options.secret = job.secret;
  return options;
}

}  // namespace

Client::Impl::Impl(ClientOptions options)
    : options_(complete(std::move(options), directory_)), client_(random_number()) {
  WEFT_REQUIRE(options_.servers >= 1, "a parameter server has at least one server");
  WEFT_REQUIRE(options_.pipeline >= 1 && options_.pipeline <= 64,
               "pipeline is " + std::to_string(options_.pipeline) + "; it must be 1 to 64");
  WEFT_REQUIRE(options_.worker != internal::kNoWorker, "this number of a worker is reserved");
  shards_.resize(options_.servers);
  const auto identity = internal::identity(options_.job, options_.secret, 1);
  for (std::uint32_t i = 0; i < options_.servers; ++i) {
    links_.push_back(std::make_unique<ClientLink>(
        ClientLink::Settings{options_.directory, i, identity, options_.local, &memory_},
        [this, i](const Outstanding& request, const Answer& answer, std::string_view payload) {
          take(shards_[i], request, answer, payload);
        }));
  }
}

void Client::Impl::define(const std::vector<Tensor>& tensors, const Options& options,
                          const std::vector<TableSpec>& tables) {
  WEFT_REQUIRE(!is_defined_, "define() was called before");
  WEFT_REQUIRE(!tensors.empty() || !tables.empty(), "define() needs at least one tensor or table");
  check(options);
  define_tables(tables);
  is_defined_ = true;
  std::vector<TensorSize> sizes;
  for (const Tensor& tensor : tensors) {
    WEFT_REQUIRE(index_.emplace(tensor.name, sizes.size()).second,
                 "tensor " + tensor.name + " is defined twice");
    tensors_.push_back({tensor.values.size(), count_});
    sizes.push_back({tensor.name, static_cast<std::int64_t>(tensor.values.size())});
    count_ += tensor.values.size();
  }
  spec_ = options;
  push_codec_ = codec_of(options.push_codec);
  (options.pull_deltas ? delta_codec_ : pull_codec_) = codec_of(options.pull_codec);
  if (compress::parse(options.push_codec).memory == compress::Memory::kFeedback)
    residual_.assign(count_, 0);
  stride_ = (sizeof(float) * count_ + kLine - 1) / kLine * kLine;
  const auto areas = static_cast<std::uint64_t>(options_.pipeline) + kValueAreas;
  const std::uint64_t rows = row_memory(), bytes = areas * stride_ + rows;
  memory_ = net::internal::SharedMemory::create(std::max<std::size_t>(bytes, kLine));
  arena_ = internal::RowArena(areas * stride_, rows);
  slots_.assign(static_cast<std::size_t>(options_.pipeline), 0);

  const Ticket ticket = open_ticket();
  for (std::uint32_t i = 0; i < options_.servers; ++i) {
    Shard& shard = shards_[i];
    shard.pieces = pieces_of(sizes, i, options_.servers);
    internal::Definition definition{options, {}, {}, tables};
    for (const Piece& piece : shard.pieces) {
      definition.parts.push_back({sizes[piece.tensor].name, piece.first, piece.count});
      const auto values = tensors[piece.tensor].values.subspan(
          static_cast<std::size_t>(piece.first), static_cast<std::size_t>(piece.count));
      definition.values.append(reinterpret_cast<const char*>(values.data()), values.size_bytes());
    }
    Outstanding request = command(Op::kDefine, i);
    request.payload = encode(definition);
    send(i, std::move(request), ticket);
  }
  wait(ticket, patience());
}

void Client::Impl::change_membership(Op op) {
  require_worker();
  finish_pull_of_deltas();
  for (Place& tensor : tensors_) tensor.is_known = false;
  const Ticket ticket = open_ticket();
  for (std::uint32_t i = 0; i < options_.servers; ++i) send(i, command(op, i), ticket);
  wait(ticket, patience());
}

std::span<float> Client::Impl::gradient(const std::string& name) {
  const Place& tensor = tensors_[find(name)];
  free_slot();
  return {slot() + tensor.offset, tensor.count};
}

Client::Ticket Client::Impl::push(const std::vector<std::string>& names, double lr, Coding coding) {
  require_worker();
  WEFT_REQUIRE(std::isfinite(lr), "the learning rate of a push must be finite");
  const std::vector<bool> chosen = choose(names);
  finish_pull_of_deltas();
  free_slot();
  for (const auto& [name, i] : index_) {
    if (chosen[i]) check_finite(name, slot() + tensors_[i].offset, tensors_[i].count);
  }
  const Ticket ticket = open_ticket();
  for (std::uint32_t i = 0; i < options_.servers; ++i) {
    Outstanding request = command(Op::kPush, i);
    request.request.version = shards_[i].version;
    request.request.lr = lr;
    request.request.exact = coding == Coding::kExact;
    load(request, shards_[i], chosen, slot());
    send(i, std::move(request), ticket);
  }
  slots_[slot_] = ticket;
  slot_ = (slot_ + 1) % slots_.size();
  return ticket;
}

Client::Ticket Client::Impl::pull(const std::vector<std::string>& names, Coding coding) {
  const std::vector<bool> chosen = choose(names);
  const bool exact = coding == Coding::kExact;
  WEFT_REQUIRE(!exact || !pull_codec_, "pull_codec = \"" + spec_.pull_codec +
                                           "\": a pull without the codec needs pull_deltas");
  WEFT_REQUIRE(!pulling_, "another pull is outstanding; wait for it first");
  const Ticket ticket = open_ticket();
  const bool as_deltas = spec_.pull_deltas && options_.worker && !exact;
  for (std::uint32_t i = 0; i < options_.servers; ++i) {
    if (as_deltas)
      pull_deltas(i, chosen, ticket);
    else
      pull_shard(i, chosen, ticket);
  }
  if (as_deltas) delta_ticket_ = ticket;
  tickets_.at(ticket).pulled = chosen;
  tickets_.at(ticket).exact = exact;
  pulling_ = true;
  return ticket;
}

bool Client::Impl::is_answered(Ticket ticket) const {
  const auto found = tickets_.find(ticket);
  return found == tickets_.end() || found->second.left == 0;
}

bool Client::Impl::is_done(Ticket ticket) {
  advance();
  return is_answered(ticket);
}

void Client::Impl::wait(Ticket ticket, Deadline deadline) {
  try {
    drive_until_answered(ticket, deadline);
  } catch (const Error& error) {
    abandon_rows(ticket, error);
    throw;
  }
  const auto found = tickets_.find(ticket);
  if (found == tickets_.end()) return;
  const State state = std::move(found->second);
  tickets_.erase(found);
  if (!state.pulled.empty()) pulling_ = false;
  for (std::size_t i = 0; i < state.pulled.size(); ++i) {
    if (!state.pulled[i]) continue;
    tensors_[i].is_known = !state.error && !state.exact;
    if (!state.error) tensors_[i].area ^= 1;
  }
  if (state.error) throw Error(*state.error);
}

void Client::Impl::wait_or_forget(Ticket ticket, Deadline deadline) {
  try {
    wait(ticket, deadline);
  } catch (...) {
    tickets_.erase(ticket);
    throw;
  }
}

std::span<const float> Client::Impl::value(const std::string& name) const {
  const Place& tensor = tensors_[find(name)];
  return {area(tensor.area) + tensor.offset, tensor.count};
}

Stats Client::Impl::stats() {
  stats_ = {};
  stats_.workers = ~0u;
  const Ticket ticket = open_ticket();
  for (std::uint32_t i = 0; i < options_.servers; ++i) {
    Outstanding request;
    request.request = read(Op::kStats, i);
    send(i, std::move(request), ticket);
  }
  wait_or_forget(ticket, patience());
  return stats_;
}

std::string Client::Impl::save() {
  WEFT_REQUIRE(is_defined_, "call define() first");
  const Deadline deadline = patience();
  net::internal::ByteWriter out;
  out.put(options_.servers);
  for (std::uint32_t i = 0; i < options_.servers; ++i) {
    std::optional<std::string> shard;
    while (!(shard = save_shard(i, deadline))) sleep(Deadline::in(std::chrono::milliseconds(20)));
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
    const Ticket ticket = open_ticket();
    Outstanding request;
    request.request = read(Op::kSave, shard);
    request.request.version = piece;
    send(shard, std::move(request), ticket);
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

void Client::Impl::finish_pull_of_deltas() { drive_until_answered(delta_ticket_, patience()); }

void Client::Impl::load(const std::string& saved) {
  WEFT_REQUIRE(is_defined_, "call define() first");
  std::vector<std::string_view> shards;
  try {
    net::internal::ByteReader in(saved);
    const auto servers = in.take<std::uint32_t>();
    WEFT_REQUIRE(servers == options_.servers, "this state was saved by " + std::to_string(servers) +
                                                  " servers, not " +
                                                  std::to_string(options_.servers));
    for (std::uint32_t i = 0; i < servers; ++i)
      shards.push_back(in.take_view(in.take<std::uint64_t>(), 1));
    in.expect_end();
  } catch (const Error& error) {
    if (error.code() != Errc::kCorrupt) throw;
    throw Error(Errc::kInvalidArgument, "this is not the state of a parameter server");
  }
  const Ticket ticket = open_ticket();
  for (std::uint32_t i = 0; i < options_.servers; ++i) {
    Outstanding request = command(Op::kLoad, i);
    request.payload = shards[i];
    send(i, std::move(request), ticket);
  }
  wait(ticket, patience());
}

Client::Ticket Client::Impl::open_ticket() {
  tickets_.emplace(++last_ticket_, State{});
  return last_ticket_;
}

void Client::Impl::send(std::uint32_t shard, Outstanding request, Ticket ticket) {
  request.ticket = ticket;
  ++tickets_.at(ticket).left;
  links_[shard]->send(std::move(request));
}

Moved Client::Impl::moved() const {
  Moved sum;
  for (const auto& link : links_) {
    sum.message_bytes += link->moved().message_bytes;
    sum.shared_bytes += link->moved().shared_bytes;
  }
  return sum;
}

void Client::Impl::advance() {
  for (const auto& link : links_) link->advance();
  const auto taints = [](const auto& link) { return link->taints_memory(); };
  if (std::none_of(links_.begin(), links_.end(), taints)) return;
  // A server that was given up must not write into values that are in use.
  memory_.renew();
  for (const auto& link : links_) link->reconnect();
}

void Client::Impl::drive_until_answered(Ticket ticket, Deadline deadline) {
  while (!is_answered(ticket)) {
    advance();
    if (is_answered(ticket)) return;
    if (deadline.passed()) throw no_answer();
    sleep(deadline);
  }
}

// Until there is something to read or write, for a short time.
void Client::Impl::sleep(Deadline deadline) {
  std::vector<pollfd> polls;
  int longest = kSleep;
  for (const auto& link : links_) {
    if (link->fd() >= 0)
      polls.push_back({link->fd(), link->events(), 0});
    else if (!link->is_idle())
      longest = kSleepUnconnected;
  }
  ::poll(polls.data(), polls.size(), std::min(deadline.left_ms(), longest));
}

Error Client::Impl::no_answer() const {
  std::string why;
  for (const auto& link : links_) {
    if (!link->is_idle()) why += (why.empty() ? "" : "; ") + link->trouble();
  }
  return Error(Errc::kTimeout, "the parameter server did not answer before the deadline: " + why,
               {"ps", -1, -1});
}

Client::Client(ClientOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {}
Client::~Client() = default;
void Client::define(const std::vector<Tensor>& tensors, const Options& options,
                    const std::vector<TableSpec>& tables) {
  impl_->define(tensors, options, tables);
}
void Client::join() { impl_->change_membership(Op::kJoin); }
void Client::leave() { impl_->change_membership(Op::kLeave); }
std::span<float> Client::gradient(const std::string& tensor) { return impl_->gradient(tensor); }
Client::Ticket Client::push(const std::vector<std::string>& tensors, double lr, Coding coding) {
  return impl_->push(tensors, lr, coding);
}
Client::Ticket Client::pull(const std::vector<std::string>& tensors, Coding coding) {
  return impl_->pull(tensors, coding);
}
Client::Ticket Client::push_rows(const std::string& table, std::span<const std::uint64_t> keys,
                                 std::span<const float> gradients, double lr) {
  return impl_->push_rows(table, keys, gradients, lr);
}
Client::Ticket Client::pull_rows(const std::string& table, std::span<const std::uint64_t> keys,
                                 std::span<float> rows) {
  return impl_->pull_rows(table, keys, rows);
}
void Client::evict_rows(const std::string& table, std::uint64_t age) {
  impl_->evict_rows(table, age);
}
void Client::wait(Ticket ticket) { impl_->wait(ticket, impl_->patience()); }
void Client::wait(Ticket ticket, Deadline deadline) { impl_->wait(ticket, deadline); }
bool Client::is_done(Ticket ticket) { return impl_->is_done(ticket); }
std::span<const float> Client::value(const std::string& tensor) const {
  return impl_->value(tensor);
}
std::int64_t Client::clock() const { return impl_->clock(); }
Stats Client::stats() { return impl_->stats(); }
Moved Client::moved() const { return impl_->moved(); }
std::string Client::save() { return impl_->save(); }
void Client::load(const std::string& saved) { impl_->load(saved); }

}  // namespace weft::ps
