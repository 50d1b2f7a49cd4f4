// A center of ordinary tensors: the servers know nothing of centers. Without an update rule, a push
// adds to a tensor.
//
//   values   [count]              add(): a push of zeros but for the changed range; pull(): a pull
//   clocks   [workers, 4]         each worker pushes changes of its own four numbers alone
//
// A wait pulls the clocks again and again. Each call waits for the answer of its push or pull
// before it returns. So a clock is advanced after the half of the exchange that it stands for.
//
// Servers. With `weft run --servers`, those of the job. Otherwise start() makes one on each of up
// to eight hosts, and the workers exchange addresses and views. Each process then has the whole
// directory in its own memory. This is possible since these servers have no backup: a view never
// changes.
//
// Errors. A lost server, a late answer, or a worker that a server has given up: all become
// kPeerLost, from which training recovers. Only the caller's mistakes stay as they are.
//
// One thread at a time calls it. A server has a thread of its own.
#include "weft/strategy/server/server_center.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <functional>
#include <map>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "weft/base/error.h"
#include "weft/base/random.h"
#include "weft/comm/texts.h"
#include "weft/net/memory/host.h"
#include "weft/ps/client.h"
#include "weft/ps/job.h"
#include "weft/ps/server.h"
#include "weft/strategy/server/internal/counted_directory.h"

namespace weft::strategy {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kMaxServers = 8;
// A worker that waits for others looks so often, and asks so often whether all are still there.
constexpr auto kLook = 500us;
constexpr auto kCount = 200ms;
// A server has so long to answer, and so long to accept a connection. Nothing replaces a server
// that is lost.
constexpr auto kAnswer = 30s;
constexpr auto kConnection = 2s;
constexpr auto kCheckConnection = 200ms;

// Servers of the job outlive the group of workers, so there is room for the clocks of a larger one.
constexpr std::size_t kRoom = 256;

std::size_t workers_with_room(const Group& workers) {
  const auto count = static_cast<std::size_t>(workers.size());
  return ps::servers_of_job() == 0 ? count : (count + kRoom - 1) / kRoom * kRoom;
}

// The first worker of each host.
std::vector<int> servers_of(const Group& workers) {
  std::vector<int> servers;
  std::set<std::string> hosts;
  const auto all = comm::all_gather_texts(workers, net::host_id());
  for (std::size_t worker = 0; worker < all.size() && servers.size() < kMaxServers; ++worker)
    if (hosts.insert(all[worker]).second) servers.push_back(static_cast<int>(worker));
  return servers;
}

// The tensors of a center on servers.
struct Names {
  std::string values, clocks;
};

Names names_of(std::size_t part) {
  const std::string suffix = part == 0 ? "" : "." + std::to_string(part);
  return {"values" + suffix, "clocks" + suffix};
}

// The centers on the servers of the job: the number of elements of each, and the index of the one
// that this rank's workers share.
struct Parts {
  std::vector<std::int64_t> counts;
  std::size_t mine = 0;
};

// A part is known by the rank, among all, of its first worker. Collective over both groups.
Parts parts_of(const Group& workers, const Group& all, std::int64_t count) {
  const std::string first = comm::broadcast_text(workers, std::to_string(all.rank()));
  std::map<int, std::int64_t> by_first;
  for (const std::string& text : comm::all_gather_texts(all, first + " " + std::to_string(count)))
    by_first[std::stoi(text)] = std::stoll(text.substr(text.find(' ')));
  Parts parts;
  for (const auto& [rank, elements] : by_first) {
    if (rank == std::stoi(first)) parts.mine = parts.counts.size();
    parts.counts.push_back(elements);
  }
  return parts;
}

class ServerCenter final : public Center {
  // Numbers of a worker in the tensor of clocks. Float32 counts to 16 million exchanges.
  enum Number { kAdded, kPulled, kAdditions, kLeft, kPerWorker };

 public:
  ServerCenter(const Group& workers, const at::Tensor& like, const ServerCenterOptions& options)
      : workers_(workers),
        all_(options.all.value_or(workers)),
        count_(like.numel()),
        codec_(options.codec),
        mine_(kPerWorker, 0.0f),
        clocks_(workers_with_room(workers) * kPerWorker, 0.0f) {
    if (like.scalar_type() != at::kFloat)
      throw Error(Errc::kBadConfig,
                  "a center on several hosts needs weights of float32; set train.precision to "
                  "fp32 or bf16");
    if (of_job_)
      comm::together(workers_, [this] { find_servers(); });
    else
      start(options);
    const Parts parts = of_job_ ? parts_of(workers_, all_, count_) : Parts{{count_}};
    comm::together(workers_, [&] {
      define(parts);
      client_->join();
    });
    if (of_job_) comm::together(workers_, [this] { begin_anew(); });
  }

  std::int64_t count() const override { return count_; }
  std::string codec() const override { return codec_; }

  void pull(std::int64_t offset, const at::Tensor& out) override {
    pull(offset, out, ps::Coding::kCodec);
  }
  void read(const at::Tensor& out) override { pull(0, out, ps::Coding::kExact); }
  void add(std::int64_t offset, const at::Tensor& change) override {
    add(offset, change, ps::Coding::kCodec);
  }

  void advance(Clock clock, std::int64_t exchange) override {
    std::vector<float> next = mine_;
    next[clock == Clock::kAdded ? kAdded : kPulled] = static_cast<float>(exchange);
    if (clock == Clock::kAdded) ++next[kAdditions];
    set_mine(next);
  }
  std::int64_t additions() const override {
    fetch_clocks();
    double sum = 0;
    for (int worker = 0; worker < workers_.size(); ++worker) sum += number(worker, kAdditions);
    return static_cast<std::int64_t>(sum);
  }
  void wait_for_all(Clock clock, std::int64_t least) override {
    const Number which = clock == Clock::kAdded ? kAdded : kPulled;
    wait_while([&](int worker) { return number(worker, which) < static_cast<float>(least); });
  }
  void wait_for_exchanges(std::int64_t last) override {
    wait_while([&](int worker) {
      const float added = number(worker, kAdded), pulled = number(worker, kPulled);
      return added != pulled && std::max(added, pulled) <= static_cast<float>(last);
    });
  }
  void leave() override {
    std::vector<float> next = mine_;
    next[kLeft] = 1;
    set_mine(next);
  }
  // The sum of a value and the rounded difference to the wanted one is within rounding of it, so
  // the second time it is equal. With a codec, each worker pulls and pushes without it, which ends
  // what the codec has left out before.
  void reset(const at::Tensor* values) override {
    workers_.barrier();
    comm::together(workers_, [&] {
      const bool sets = workers_.rank() == 0;
      const int times = sets ? 2 : codec_ == "none" ? 0 : 1;
      for (int time = 0; values != nullptr && time < times; ++time) {
        at::Tensor now = at::empty({count_}, at::kFloat);
        read(now);
        add(0, sets ? *values - now : at::zeros_like(now), ps::Coding::kExact);
      }
      set_mine(std::vector<float>(kPerWorker, 0.0f));
    });
  }
  at::Tensor snapshot() override {
    workers_.barrier();
    at::Tensor copy;
    comm::together(workers_, [&] {
      copy = at::empty({count_}, at::kFloat);
      read(copy);
    });
    return copy;
  }
  at::Tensor in_place() override { return {}; }

 private:
  void find_servers() {
    ps::ClientOptions asking = ps::job_client();
    asking.worker = static_cast<std::uint32_t>(all_.rank());
    client_.emplace(asking);
  }

  void define(const Parts& parts) {
    names_ = names_of(parts.mine);
    const auto most = *std::max_element(parts.counts.begin(), parts.counts.end());
    const std::vector<float> zeros(static_cast<std::size_t>(most), 0.0f);
    std::vector<ps::Tensor> tensors;
    for (std::size_t part = 0; part < parts.counts.size(); ++part) {
      const Names names = names_of(part);
      const auto count = static_cast<std::size_t>(parts.counts[part]);
      tensors.push_back({names.values, std::span(zeros).first(count)});
      tensors.push_back({names.clocks, clocks_});
    }
    client_->define(tensors, {.rule = std::nullopt,
                              .staleness = ps::kAsync,
                              .push_codec = codec_,
                              .pull_codec = codec_,
                              .pull_deltas = codec_ != "none"});
  }

  // The servers may have the values and clocks of an earlier group of workers, none of whose
  // clients counts any more: all workers have joined.
  void begin_anew() {
    fetch_clocks();
    const auto first = static_cast<std::ptrdiff_t>(workers_.rank()) * kPerWorker;
    mine_.assign(clocks_.begin() + first, clocks_.begin() + first + kPerWorker);
    set_mine(std::vector<float>(kPerWorker, 0.0f));
    if (workers_.rank() == 0) {
      at::Tensor now = at::empty({count_}, at::kFloat);
      read(now);
      add(0, -now, ps::Coding::kExact);
    }
  }

  void start(const ServerCenterOptions& options) {
    const std::string secret = comm::broadcast_text(workers_, random_bytes(32));
    std::array<std::byte, 32> bytes{};
    std::memcpy(bytes.data(), secret.data(), bytes.size());
    const auto servers = servers_of(workers_);
    const auto mine = std::find(servers.begin(), servers.end(), workers_.rank());
    ps::ServerAddress address;
    std::string incarnation = "0";
    const Deadline soon = Deadline::in(10s);
    comm::together(workers_, [&] {
      if (mine == servers.end()) return;
      ps::ServerOptions serving;
      serving.directory = &directory_;
      serving.server = static_cast<std::uint32_t>(mine - servers.begin());
      serving.servers = static_cast<std::uint32_t>(servers.size());
      serving.backup = false;
      serving.interface = options.interface;
      serving.secret = bytes;
      server_.emplace(serving);
      address = server_->address();
      incarnation = std::to_string(own_incarnation(serving.server, soon));
    });
    const auto local = comm::all_gather_texts(workers_, address.local),
               tcp = comm::all_gather_texts(workers_, address.tcp),
               incarnations = comm::all_gather_texts(workers_, incarnation);
    comm::together(workers_, [&] {
      // In the view that each server has made of its shard, it is alone.
      for (std::uint32_t i = 0; i < servers.size(); ++i) {
        const auto worker = static_cast<std::size_t>(servers[i]);
        if (servers[i] == workers_.rank()) continue;
        directory_.announce(i, {local[worker], tcp[worker]}, soon);
        directory_.replace(i, {.number = 1, .members = {{i, std::stoull(incarnations[worker])}}},
                           soon);
      }
      ps::ClientOptions asking;
      asking.directory = &asked_;
      asking.servers = static_cast<std::uint32_t>(servers.size());
      asking.worker = static_cast<std::uint32_t>(workers_.rank());
      asking.secret = bytes;
      client_.emplace(asking);
    });
  }

  // Of this rank's server, once it has made the first view of its shard.
  std::uint64_t own_incarnation(std::uint32_t shard, Deadline deadline) {
    for (;;) {
      const auto views = directory_.views(deadline);
      if (const auto found = views.find(shard); found != views.end())
        return found->second.members.at(0).incarnation;
      if (const auto why = server_->failure()) throw Error(*why);
      if (deadline.passed()) throw Error(Errc::kTimeout, "a server of the center does not start");
      std::this_thread::sleep_for(kLook);
    }
  }

  void check_range(std::int64_t offset, const at::Tensor& vector) const {
    WEFT_REQUIRE(offset >= 0 && vector.dim() == 1 && vector.numel() <= count_ - offset,
                 "elements outside the center's " + std::to_string(count_));
  }

  void pull(std::int64_t offset, const at::Tensor& out, ps::Coding coding) const {
    check_range(offset, out);
    exchange([&] { return client_->pull({names_.values}, coding); });
    const auto values = client_->value(names_.values);
    std::memcpy(out.mutable_data_ptr(), values.data() + offset, out.nbytes());
  }
  void fetch_clocks() const {
    exchange([&] { return client_->pull({names_.clocks}, ps::Coding::kExact); });
    const auto values = client_->value(names_.clocks);
    clocks_.assign(values.begin(), values.end());
  }
  void send(const std::string& tensor, ps::Coding coding) {
    exchange([&] { return client_->push({tensor}, -1, coding); });
  }
  void add(std::int64_t offset, const at::Tensor& change, ps::Coding coding) {
    check_range(offset, change);
    const at::Tensor dense = change.contiguous();
    const auto delta = client_->gradient(names_.values);
    std::fill(delta.begin(), delta.end(), 0.0f);
    std::memcpy(delta.data() + offset, dense.const_data_ptr(), dense.nbytes());
    send(names_.values, coding);
  }
  // Waits for the answer, but not for a server that does not accept a connection any more.
  void wait_for(ps::Client::Ticket ticket) const {
    const Deadline answer = Deadline::in(kAnswer);
    for (Deadline lost = Deadline::in(kConnection);;) {
      const int attempts = asked_.attempts();
      try {
        return client_->wait(ticket, Deadline::in(kCheckConnection));
      } catch (const Error& error) {
        if (error.code() != Errc::kTimeout || answer.passed() || lost.passed()) throw;
        // No new attempt to connect: the connection stands, and the server is only slow.
        if (asked_.attempts() == attempts) lost = Deadline::in(kConnection);
      }
    }
  }
  // `ask` returns the ticket. kPeerLost: a server or this worker's place at it is lost, so that
  // training must recover.
  template <class Ask>
  void exchange(const Ask& ask) const {
    try {
      wait_for(ask());
      const ps::Moved moved = client_->moved(), before = std::exchange(moved_, moved);
      workers_.count({.sent_bytes = moved.message_bytes - before.message_bytes,
                      .shared_bytes = moved.shared_bytes - before.shared_bytes});
    } catch (const Error& error) {
      if (error.code() == Errc::kInvalidArgument) throw;
      throw Error(Errc::kPeerLost, "the center cannot be reached: " + error.message(),
                  {"exchange with the center", workers_.rank()});
    }
  }

  float number(int worker, Number which) const {
    return clocks_[static_cast<std::size_t>(worker * kPerWorker + which)];
  }
  void set_mine(const std::vector<float>& next) {
    const auto delta = client_->gradient(names_.clocks);
    std::fill(delta.begin(), delta.end(), 0.0f);
    for (std::size_t i = 0; i < kPerWorker; ++i)
      // The server adds, so it gets the difference to what this worker has written last.
      delta[static_cast<std::size_t>(workers_.rank()) * kPerWorker + i] = next[i] - mine_[i];
    send(names_.clocks, ps::Coding::kExact);
    mine_ = next;
  }

  // `keeps_waiting(worker)`: whether this worker holds the others.
  void wait_while(const std::function<bool(int)>& keeps_waiting) {
    const Deadline deadline = Deadline::in(workers_.timeout());
    auto counted = Deadline::Clock::now();
    for (;;) {
      fetch_clocks();
      int awaited = 0;
      while (awaited < workers_.size() && (number(awaited, kLeft) > 0 || !keeps_waiting(awaited)))
        ++awaited;
      if (awaited == workers_.size()) return;
      const auto fail = [&](Errc code, const std::string& what) {
        throw Error(code, "worker " + std::to_string(awaited) + " " + what,
                    {"wait for the slowest worker", workers_.rank(), awaited});
      };
      if (deadline.passed()) fail(Errc::kTimeout, "did not exchange in time");
      // A lost worker would be awaited until the deadline. The servers notice its loss by its
      // connections.
      if (Deadline::Clock::now() - counted > kCount) {
        counted = Deadline::Clock::now();
        if (static_cast<int>(client_->stats().workers) < (of_job_ ? all_ : workers_).size())
          fail(Errc::kPeerLost, "is awaited, and a worker is lost");
      }
      std::this_thread::sleep_for(kLook);
    }
  }

  const bool of_job_ = ps::servers_of_job() > 0;
  const Group workers_, all_;
  const std::int64_t count_;
  const std::string codec_;
  ps::MemoryDirectory directory_;
  internal::CountedDirectory asked_{directory_};  // by the client
  std::optional<ps::Server> server_;
  mutable std::optional<ps::Client> client_;
  Names names_;
  std::vector<float> mine_;            // this worker's numbers
  mutable ps::Moved moved_;            // as it was last counted
  mutable std::vector<float> clocks_;  // of all workers, as they were last read
};

}  // namespace

std::unique_ptr<Center> server_center(const Group& workers, const at::Tensor& like,
                                      const ServerCenterOptions& options) {
  return std::make_unique<ServerCenter>(workers, like, options);
}

const ServerComponent& server_component() {
  static constexpr ServerComponent kComponent{
      .job_has_servers = [] { return ps::servers_of_job() > 0; }, .center = server_center};
  return kComponent;
}

}  // namespace weft::strategy
