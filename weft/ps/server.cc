#include "weft/ps/server.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "weft/base/caught/caught.h"
#include "weft/base/log.h"
#include "weft/base/random.h"
#include "weft/ps/internal/arrange.h"
#include "weft/ps/internal/connections.h"
#include "weft/ps/internal/neighbors.h"

namespace weft::ps {
namespace {

using internal::Answer;
using internal::ChainMessage;
using internal::Connections;
using internal::Replica;
using internal::Request;
using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr auto kTick = 20ms;
// Times the worker timeout that a server waits for the workers of the server that it replaces.
constexpr int kAfterLoss = 10;
// Time without workers and clients after which a server is not needed any more.
constexpr auto kUnused = 1s;
// Of a call of the directory. The other servers wait longer for a sign of life.
constexpr auto kDirectory = 300ms;
// Rounds in which this server reads its connections, at least, before it takes others as lost.
constexpr int kRounds = 4;
// Bytes that a server reads or copies in a millisecond, at least.
constexpr std::uint64_t kBytesPerMs = 200'000;

// Of a worker or a server. Some times are ten of these, in nanoseconds.
constexpr std::chrono::hours kLongestSilence{24 * 365};

void check(const ServerOptions& options) {
  WEFT_REQUIRE(options.directory != nullptr, "a parameter server needs a directory");
  WEFT_REQUIRE(options.servers >= 1 && options.server < options.servers,
               "server " + std::to_string(options.server) + " of " +
                   std::to_string(options.servers) + ": the numbers are 0 to servers - 1");
  WEFT_REQUIRE(options.memory_mb > 0,
               "memory_mb is " + std::to_string(options.memory_mb) + "; it must be above 0");
  WEFT_REQUIRE(options.folder_mb > 0,
               "folder_mb is " + std::to_string(options.folder_mb) + "; it must be above 0");
  const auto is_possible = [](std::chrono::milliseconds timeout) {
    return timeout >= 100ms && timeout <= kLongestSilence;
  };
  WEFT_REQUIRE(is_possible(options.server_timeout) && is_possible(options.worker_timeout),
               "server_timeout and worker_timeout must be from 100 ms to a year");
  WEFT_REQUIRE(options.secret || !net::internal::is_wildcard(options.interface),
               "a parameter server that listens on all interfaces needs the job's secret");
}

Connections::Listeners listen(const ServerOptions& options, ServerAddress& address) {
  Connections::Listeners listeners;
  listeners.local = net::internal::listen_locally("ps");
  address.local = listeners.local.name;
  if (options.interface.empty()) return listeners;
  const std::string host = net::internal::resolve_interface(options.interface);
  WEFT_REQUIRE(!options.advertise.empty() || !net::internal::is_wildcard(host),
               "a parameter server that listens on all interfaces needs `advertise`");
  listeners.tcp = net::internal::listen_on(host, options.port);
  address.tcp = net::internal::join_address(options.advertise.empty() ? host : options.advertise,
                                            net::internal::bound_port(listeners.tcp));
  return listeners;
}

// What the thread of a server says to the others. Any thread may call any method.
class ServerStatus {
 public:
  bool is_over() const { return is_over_; }
  bool is_replicated() const { return is_replicated_; }
  std::optional<std::uint32_t> lost_shard() const {
    const std::int64_t shard = lost_shard_;
    return shard < 0 ? std::nullopt : std::optional(static_cast<std::uint32_t>(shard));
  }
  std::optional<Error> failure() const {
    const std::lock_guard lock(mutex_);
    return failure_;
  }
  void set_over(bool is_over) { is_over_ = is_over; }
  void set_replicated(bool is_replicated) { is_replicated_ = is_replicated; }
  void set_lost(std::uint32_t shard) { lost_shard_ = shard; }
  void set_failure(const Error& error) {
    const std::lock_guard lock(mutex_);
    failure_ = error;
  }

 private:
  std::atomic<bool> is_over_ = false, is_replicated_ = false;
  std::atomic<std::int64_t> lost_shard_ = -1;
  mutable std::mutex mutex_;
  std::optional<Error> failure_;  // guarded by mutex_
};

}  // namespace

// The thread of a server. All members but the status are for this thread.
class Server::Loop {
 public:
  explicit Loop(ServerOptions options)
      : options_((check(options), std::move(options))),
        wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
        connections_(std::in_place, listen(options_, address_),
                     internal::identity(options_.job, options_.secret, 0),
                     internal::identity(options_.job, options_.secret, 1), events()) {
    options_.directory->announce(options_.server, address_, Deadline::in(10s));
    host(options_.server);
    if (has_backups()) host((options_.server + options_.servers - 1) % options_.servers);
    thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
  }

  ~Loop() {
    thread_.request_stop();
    const std::uint64_t one = 1;
    if (::write(wake_.get(), &one, sizeof one) < 0) return;  // it wakes at its next tick
  }

  const ServerAddress& address() const { return address_; }
  const ServerStatus& status() const { return status_; }

 private:
  struct Hosted {
    std::unique_ptr<Replica> replica;
    internal::Neighbors neighbors;
    std::map<std::uint64_t, Clock::time_point> client_seen;
    bool reported_loss = false, was_replicated = false;
  };

  void host(std::uint32_t shard) { hosted_[shard].replica = make_replica(shard); }

  std::unique_ptr<Replica> make_replica(std::uint32_t shard) const {
    Replica::Settings settings;
    settings.me = {options_.server, random_number()};
    settings.shard = shard;
    settings.memory_bytes = static_cast<std::uint64_t>(options_.memory_mb) * 1'000'000;
    settings.files.folder = options_.folder;
    settings.files.max_bytes = static_cast<std::uint64_t>(options_.folder_mb) * 1'000'000;
    return std::make_unique<Replica>(settings);
  }

  Connections::Events events() {
    return {[this](Connections::Token token, const std::string& bytes) { request(token, bytes); },
            [this](Connections::Token token) { gone(token); },
            [this](const std::string& bytes) { chain(bytes); }};
  }

  void run(const std::stop_token& stop) {
    try {
      Clock::time_point next_tick = last_tick_ = Clock::now();
      while (!stop.stop_requested()) {
        if (Clock::now() >= next_tick) {
          tick();
          next_tick = Clock::now() + kTick;
        }
        net::internal::Polls polls;
        polls.add(wake_.get(), POLLIN, [] {});
        connections_->watch(polls);
        const auto left =
            std::chrono::ceil<std::chrono::milliseconds>(next_tick - Clock::now()).count();
        polls.wait(static_cast<int>(std::clamp<std::int64_t>(left, 0, kTick.count())));
      }
    } catch (const std::exception& error) {
      log_warn("parameter server " + std::to_string(options_.server) +
               " ends: " + weft::describe(error));
      status_.set_failure(as_error(error));
      connections_.reset();  // so that nobody waits for an answer
    }
  }

  // ---- clients

  void request(Connections::Token token, const std::string& bytes) {
    Request request = internal::decode_request(bytes);
    clients_[token] = request.client;
    last_use_ = Clock::now();
    std::span<std::byte> target;
    if (request.in_memory) {
      const std::span<std::byte> memory = connections_->memory(token);
      if (request.offset > memory.size() || request.bytes > memory.size() - request.offset)
        throw Error(Errc::kCorrupt, "a request refers to memory that the client does not share");
      target = memory.subspan(request.offset, request.bytes);
      if (request.op == internal::Op::kPush || request.op == internal::Op::kPushRows)
        request.payload = {reinterpret_cast<const char*>(target.data()), target.size()};
    }
    const auto hosted = hosted_.find(request.shard);
    const bool begins = request.op == internal::Op::kDefine || request.op == internal::Op::kLoad;
    if (hosted == hosted_.end() || (begins && waits_for_backup(hosted->second))) {
      Answer answer;
      answer.id = request.id;
      answer.outcome = internal::Outcome::kElsewhere;
      if (hosted != hosted_.end()) answer.text = "its backup has not joined yet";
      return connections_->answer(token, answer);
    }
    const bool pulls = request.op == internal::Op::kPull || request.op == internal::Op::kPullRows;
    if (pulls && !request.in_memory) hosted->second.replica->lend(connections_->take_spare(token));
    announce_work(hosted->second.replica->work_of(request));
    hosted->second.replica->request(token, request, target);
    flush(*hosted->second.replica);
  }

  // A new shard takes nothing before it has its backup: what is acknowledged has two copies.
  bool waits_for_backup(const Hosted& hosted) const {
    return has_backups() && hosted.replica->is_first() && !hosted.was_replicated;
  }

  bool has_backups() const { return options_.backup && options_.servers > 1; }

  void gone(Connections::Token token) {
    clients_.erase(token);
    for (auto& [shard, hosted] : hosted_) hosted.replica->forget(token);
  }

  void flush(Replica& replica) {
    for (Replica::Message& message : replica.take_messages()) {
      const auto address = servers_.find(message.server);
      if (address != servers_.end())
        connections_->send(message.server, address->second, std::move(message.bytes));
    }
    for (Replica::Reply& reply : replica.take_replies())
      connections_->answer(reply.token, std::move(reply.answer));
  }

  // ---- other servers

  void chain(const std::string& bytes) {
    const ChainMessage message = internal::decode_chain_message(bytes);
    const auto found = hosted_.find(message.shard);
    if (found == hosted_.end()) return;
    Hosted& hosted = found->second;
    hosted.neighbors.hear(*hosted.replica, message, Clock::now());
    announce_work(hosted.replica->work_of(message));
    hosted.replica->receive(message);
    flush(*hosted.replica);
  }

  // Before work that takes long. This server is silent meanwhile, and the others must not take it
  // as lost.
  void announce_work(std::uint64_t bytes) {
    const std::chrono::milliseconds pause(bytes / kBytesPerMs);
    if (pause <= options_.server_timeout / kRounds) return;
    for (auto& [shard, hosted] : hosted_) {
      hosted.replica->announce_pause(pause);
      flush(*hosted.replica);
    }
  }

  // If this server was busy since the last tick, what has come meanwhile is not read yet. So nobody
  // was silent for this time.
  void forgive_silence(Clock::time_point now) {
    const Clock::duration busy =
        now - std::exchange(last_tick_, now) - options_.server_timeout / kRounds;
    if (busy <= 0ms) return;
    for (auto& [shard, hosted] : hosted_) {
      hosted.neighbors.forgive(busy, now);
      for (auto& [client, seen] : hosted.client_seen) seen += busy;
    }
    last_use_ = std::min(last_use_ + busy, now);
  }

  void tick() {
    // The time before the calls of the directory, which may take long.
    const Clock::time_point now = Clock::now();
    forgive_silence(now);
    connections_->tend();
    std::map<std::uint32_t, View> views;
    try {
      views = options_.directory->views(Deadline::in(kDirectory));
      servers_ = options_.directory->servers(Deadline::in(kDirectory));
      directory_fails_ = false;
      for (auto& [shard, hosted] : hosted_) arrange(shard, hosted, views[shard], now);
      status_.set_replicated(std::all_of(hosted_.begin(), hosted_.end(), [&](const auto& one) {
        const View& view = views[one.first];  // may still have a server in this one's place
        return view.members.size() >= internal::kCopies && view.has(one.second.replica->me());
      }));
    } catch (const Error& error) {
      // It goes on with the views that it knows, and asks again at the next tick.
      if (!directory_fails_)
        log_warn("parameter server " + std::to_string(options_.server) +
                 " cannot ask the directory: " + error.message());
      directory_fails_ = true;
    }
    for (auto& [shard, hosted] : hosted_) {
      drop_workers(hosted, now);
      hosted.replica->tick();
      flush(*hosted.replica);
    }
    notice_end();
  }

  void notice_end() {
    bool has_workers = false;
    for (const auto& [shard, hosted] : hosted_) {
      has_workers = has_workers || !hosted.replica->shard().workers().empty();
      had_workers_ = had_workers_ || hosted.replica->shard().had_workers();
    }
    if (has_workers || !clients_.empty()) last_use_ = Clock::now();
    status_.set_over(had_workers_ && Clock::now() - last_use_ > kUnused);
  }

  // Takes this server's place in the chain of a shard, and leaves out those that are lost.
  void arrange(std::uint32_t shard, Hosted& hosted, const View& view, Clock::time_point now) {
    hosted.replica->adopt(view);
    hosted.was_replicated = hosted.was_replicated || view.members.size() >= internal::kCopies;
    flush(*hosted.replica);
    if (hosted.replica->is_out()) hosted.replica = make_replica(shard);
    internal::Neighbors& neighbors = hosted.neighbors;
    neighbors.adopt(*hosted.replica, Clock::now());
    internal::Place place;
    place.founds = shard == options_.server;
    place.previous_is_silent = neighbors.previous_is_silent(now, options_.server_timeout);
    place.next_is_silent = neighbors.next_is_silent(*hosted.replica, now, options_.server_timeout);
    const auto next = internal::next_view(*hosted.replica, view, place);
    if (!next) {
      if (internal::is_lost(*hosted.replica, view) && !std::exchange(hosted.reported_loss, true)) {
        status_.set_lost(shard);
        log_warn("shard " + std::to_string(shard) + " of the parameter server is lost: server " +
                 std::to_string(options_.server) +
                 " was the only one that had it, and was started again");
      }
      return;
    }
    const bool done = options_.directory->replace(shard, *next, Deadline::in(kDirectory));
    for (const Member& member : view.members) {
      if (done && !next->has(member))
        log_warn("server " + std::to_string(member.server) +
                 " of the parameter server is lost; shard " + std::to_string(shard) +
                 " goes on without it");
    }
  }

  void drop_workers(Hosted& hosted, Clock::time_point now) {
    if (!hosted.replica->is_first()) {
      hosted.client_seen.clear();
      return;
    }
    for (const auto& [token, client] : clients_) hosted.client_seen[client] = now;
    for (const auto& [worker, client] : hosted.replica->shard().workers()) {
      // After the loss of a server, a worker connects with its next request only.
      const auto patience = (kAfterLoss - 1) * options_.worker_timeout;
      const auto [seen, is_new] = hosted.client_seen.emplace(client, now + patience);
      if (now - seen->second < options_.worker_timeout) continue;
      log_warn("the parameter server goes on without worker " + std::to_string(worker) +
               ", which has no connection");
      hosted.replica->drop(worker, client);
    }
    std::erase_if(hosted.client_seen,
                  [&](const auto& one) { return now - one.second > 2 * options_.worker_timeout; });
  }

  const ServerOptions options_;
  ServerAddress address_;
  UniqueFd wake_;
  std::optional<Connections> connections_;               // none: the thread has ended by an error
  std::map<Connections::Token, std::uint64_t> clients_;  // by connection
  std::map<std::uint32_t, Hosted> hosted_;               // by shard
  std::map<std::uint32_t, ServerAddress> servers_;
  bool directory_fails_ = false, had_workers_ = false;
  Clock::time_point last_use_, last_tick_;
  ServerStatus status_;
  std::jthread thread_;
};

Server::Server(ServerOptions options) : loop_(std::make_unique<Loop>(std::move(options))) {}
Server::~Server() = default;
ServerAddress Server::address() const { return loop_->address(); }
bool Server::is_over() const { return loop_->status().is_over(); }
bool Server::is_replicated() const { return loop_->status().is_replicated(); }
std::optional<std::uint32_t> Server::lost_shard() const { return loop_->status().lost_shard(); }
std::optional<Error> Server::failure() const { return loop_->status().failure(); }

}  // namespace weft::ps
