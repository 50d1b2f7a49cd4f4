#include "weft/ps/internal/client_requests.h"

#include <poll.h>

#include <algorithm>
#include <utility>

#include "weft/base/random.h"
#include "weft/ps/internal/connections.h"
#include "weft/ps/job.h"

namespace weft::ps::internal {
namespace {

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

ClientRequests::ClientRequests(ClientOptions options, OnAnswer on_answer)
    : options_(complete(std::move(options), directory_)),
      on_answer_(std::move(on_answer)),
      client_(random_number()) {
  WEFT_REQUIRE(options_.servers >= 1, "a parameter server has at least one server");
  WEFT_REQUIRE(options_.pipeline >= 1 && options_.pipeline <= 64,
               "pipeline is " + std::to_string(options_.pipeline) + "; it must be 1 to 64");
  WEFT_REQUIRE(options_.worker != kNoWorker, "this number of a worker is reserved");
  shards_.resize(options_.servers);
  const net::internal::Identity me = identity(options_.job, options_.secret, 1);
  for (std::uint32_t i = 0; i < options_.servers; ++i) {
    links_.push_back(std::make_unique<ClientLink>(
        ClientLink::Settings{options_.directory, i, me, options_.local, &memory_},
        [this](const Outstanding& request, const Answer& answer, std::string_view payload) {
          take(request, answer, payload);
        }));
  }
}

Moved ClientRequests::moved() const {
  Moved sum;
  for (const auto& link : links_) {
    sum.message_bytes += link->moved().message_bytes;
    sum.shared_bytes += link->moved().shared_bytes;
  }
  return sum;
}

void ClientRequests::share(std::size_t bytes) {
  constexpr std::size_t kLine = 64;  // the memory is never empty
  memory_ = net::internal::SharedMemory::create(std::max(bytes, kLine));
}

ClientRequests::Ticket ClientRequests::open_ticket() {
  tickets_.emplace(++last_ticket_, State{});
  return last_ticket_;
}

void ClientRequests::send(std::uint32_t shard, Outstanding request, Ticket ticket) {
  request.ticket = ticket;
  ++tickets_.at(ticket).left;
  links_[shard]->send(std::move(request));
}

Request ClientRequests::read(Op op, std::uint32_t shard) {
  Request request;
  request.op = op;
  request.shard = shard;
  request.id = ++last_id_;
  request.client = client_;
  request.worker = options_.worker.value_or(kNoWorker);
  request.sequence = shards_[shard].sequence;
  request.done = shards_[shard].answered;
  return request;
}

Outstanding ClientRequests::command(Op op, std::uint32_t shard) {
  ++shards_[shard].sequence;
  Outstanding outstanding;
  outstanding.request = read(op, shard);
  return outstanding;
}

bool ClientRequests::is_answered(Ticket ticket) const {
  const auto found = tickets_.find(ticket);
  return found == tickets_.end() || found->second.left == 0;
}

void ClientRequests::advance() {
  for (const auto& link : links_) link->advance();
  const auto taints = [](const auto& link) { return link->taints_memory(); };
  if (std::none_of(links_.begin(), links_.end(), taints)) return;
  // A server that was given up must not write into values that are in use.
  memory_.renew();
  std::vector<std::uint32_t> closed;
  for (std::uint32_t i = 0; i < links_.size(); ++i)
    if (links_[i]->reconnect()) closed.push_back(i);
  // A server drops a worker that has no connection, and knows a client by its requests. So a link
  // without requests makes one, whose answer nobody waits for.
  for (const std::uint32_t i : closed) {
    if (links_[i]->is_idle()) links_[i]->send({read(Op::kStats, i), {}, 0});
    links_[i]->advance();
  }
}

void ClientRequests::advance_by(Deadline deadline) {
  if (deadline.passed()) throw no_answer();
  sleep(deadline);
  advance();
}

void ClientRequests::await(Ticket ticket, Deadline deadline) {
  if (!is_answered(ticket)) advance();
  while (!is_answered(ticket)) advance_by(deadline);
}

std::optional<Error> ClientRequests::close(Ticket ticket) {
  const auto state = tickets_.extract(ticket);
  return state.empty() ? std::nullopt : state.mapped().error;
}

void ClientRequests::wait(Ticket ticket, Deadline deadline) {
  await(ticket, deadline);
  if (const auto error = close(ticket)) throw Error(*error);
}

void ClientRequests::take(const Outstanding& outstanding, const Answer& answer,
                          std::string_view payload) {
  const Request& request = outstanding.request;
  Shard& shard = shards_[request.shard];
  if (is_command(request.op)) shard.answered = std::max(shard.answered, request.sequence);
  const auto ticket = tickets_.find(outstanding.ticket);
  const bool is_known = ticket != tickets_.end();
  if (is_known) {
    --ticket->second.left;
    if (is_refused(answer) && !ticket->second.error)
      ticket->second.error = Error(answer.code, answer.text);
  }
  const bool is_wanted = is_known && !is_refused(answer);
  if (is_wanted && request.op != Op::kStats && request.op != Op::kSave) shard.clock = answer.clock;
  on_answer_(request, answer, payload, is_wanted);
}

void ClientRequests::sleep(Deadline deadline) {
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

Error ClientRequests::no_answer() const {
  std::string why;
  for (const auto& link : links_) {
    if (!link->is_idle()) why += (why.empty() ? "" : "; ") + link->trouble();
  }
  return Error(Errc::kTimeout, "the parameter server did not answer before the deadline: " + why,
               {"ps", -1, -1});
}

}  // namespace weft::ps::internal
