// Hogwild++: clusters of workers with a copy of the weights each, in a ring with one token.
//
// Source: Zhang, Hsieh, Akella, "HogWild++: a new mechanism for decentralized asynchronous
// stochastic gradient descent", ICDM 2016. The cluster that holds the token exchanges with the next
// one. With w its weights, s those after its last exchange, and u the next cluster's weights:
//
//   Δ = w - s
//   u := u + β Δ
//   w := λ u + (1 - λ) w + (β + λ - 1) Δ       s := w       (u: before its change)
//
// β is the root of β^C + β = 1 for C clusters, and λ = 1 - β^(C-1): so each change comes to count
// about once in each copy. Then the cluster visits some more rows, and passes the token on. Nobody
// waits for the token.
//
// Within a host the clusters' weights lie in shared memory. If the first worker of a cluster has
// visited its rows, an earlier cluster takes its turns (internal/cluster_member.h). Between hosts
// the exchange is two messages, Δ and u, and the host goes on with its rows while they travel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace weft::linear {

struct Mixing {
  float beta = 1, lambda = 0;
};
// β and λ for this number of clusters, at least 2.
Mixing mixing(int clusters);

// The exchange of cluster w with the next one, as above. Other workers may read and write `w` and
// `next` at the same time; `snapshot` is s.
void exchange(std::span<float> w, std::span<float> snapshot, std::span<float> next,
              const Mixing& mixing);

// Messages between the hosts of a ring, which do not wait. Arrays have one length for each kind,
// and messages of a kind arrive in order.
class RingMessages {
 public:
  // kToken and kChange go to the next host, kAnswer to the previous one.
  enum Kind { kToken, kChange, kAnswer };

  virtual ~RingMessages() = default;
  // Starts sending a copy of the values.
  virtual void send(Kind kind, std::span<const float> values) = 0;
  // The next message of this kind from the previous (kAnswer: the next) host, if it has arrived. It
  // is valid until the next call for this kind. Throws if that host is lost.
  virtual std::optional<std::span<const float>> receive(Kind kind) = 0;
  // Sleeps a little: called while nothing but messages is waited for. Throws when it was called for
  // too long without a message.
  virtual void wait() = 0;
};

// One host's part in the ring of hosts. One thread calls it.
class RingMember {
 public:
  // `w` are the weights of the host's first cluster, which its workers change at the same time.
  // Host 0 begins with the token. The token is passed on `rows` rows after an exchange.
  RingMember(RingMessages& messages, std::span<float> w, int host, int hosts, std::int64_t rows);

  // Does what can be done now: answers the previous host, begins or ends an exchange, passes the
  // token. `rows`: rows that the caller has visited since the last call.
  void poll(std::int64_t rows);
  // Waits for the end of this host's exchange, and for the previous host's last message. All hosts
  // call it after their last poll().
  void finish();

 private:
  void take_token();
  void answer();
  void begin();
  void end(std::span<const float> next);

  RingMessages& messages_;
  std::span<float> w_;
  std::vector<float> snapshot_, sent_w_, change_;
  Mixing mixing_;
  std::int64_t rows_;
  bool has_token_ = false, exchanged_ = false, awaits_answer_ = false;
  bool last_token_ = false, last_change_ = false;  // From the previous host.
  std::int64_t left_ = 0;                          // Rows until the token is passed on.
};

}  // namespace weft::linear
