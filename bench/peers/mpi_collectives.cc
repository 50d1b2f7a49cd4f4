// Measures the collectives of the MPI that it was compiled with; driven over stdin
// (bench/README.md).
//
//   mpirun -n 2 --oversubscribe weft_peer_mpi
//   mpirun -n 2 --oversubscribe weft_peer_mpi --prepared      all_reduce as a persistent collective
#include <mpi.h>
#include <sched.h>
#if defined(OPEN_MPI) && OMPI_MAJOR_VERSION < 5
#include <mpi-ext.h>
#endif
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <memory>
#include <string>

#include "bench/peers/command.h"

namespace weft::bench {
namespace {

#if defined(OPEN_MPI) && OMPI_MAJOR_VERSION >= 5
constexpr const char* kImpl = "openmpi5";
#elif defined(OPEN_MPI)
constexpr const char* kImpl = "openmpi";
#elif defined(MPICH)
constexpr const char* kImpl = "mpich";
#else
constexpr const char* kImpl = "mpi";
#endif

// The persistent all-reduce of MPI 4, which Open MPI 4 has under another name.
#if MPI_VERSION >= 4
constexpr bool kHasPrepared = true;
#define WEFT_ALLREDUCE_INIT MPI_Allreduce_init
#elif defined(OMPI_HAVE_MPI_EXT_PCOLLREQ)
constexpr bool kHasPrepared = true;
#define WEFT_ALLREDUCE_INIT MPIX_Allreduce_init
#else
constexpr bool kHasPrepared = false;
#endif

void prepare_all_reduce([[maybe_unused]] float* data, [[maybe_unused]] int count,
                        [[maybe_unused]] MPI_Request* request) {
#ifdef WEFT_ALLREDUCE_INIT
  WEFT_ALLREDUCE_INIT(MPI_IN_PLACE, data, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD, MPI_INFO_NULL,
                      request);
#endif
}

// Forwards rank 0's commands to the other ranks of this host. They sleep in recv() on a Unix
// datagram socket, whose address the kernel picks. Waiting in MPI would spin, and take a core from
// the participant that is measured.
class Wakeup {
 public:
  Wakeup(int rank, int size)
      : socket_(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)), rank_(rank), addresses_(size) {
    Address mine{};
    mine.path.sun_family = AF_UNIX;
    mine.length = sizeof mine.path;
    const auto raw = reinterpret_cast<sockaddr*>(&mine.path);
    if (socket_ < 0 || ::bind(socket_, raw, sizeof(sa_family_t)) != 0 ||
        ::getsockname(socket_, raw, &mine.length) != 0)
      fail("socket");
    MPI_Gather(&mine, sizeof mine, MPI_BYTE, addresses_.data(), sizeof mine, MPI_BYTE, 0,
               MPI_COMM_WORLD);
  }
  ~Wakeup() { ::close(socket_); }
  Wakeup(const Wakeup&) = delete;
  Wakeup& operator=(const Wakeup&) = delete;

  // Returns the next command on every rank. The end of rank 0's stdin is a quit command.
  std::string next() {
    if (rank_ != 0) return receive();
    std::string line;
    if (!std::getline(std::cin, line)) line = "{\"quit\":true}";
    for (std::size_t peer = 1; peer < addresses_.size(); ++peer) send(line, addresses_[peer]);
    return line;
  }

 private:
  struct Address {
    sockaddr_un path;
    socklen_t length;
  };

  [[noreturn]] static void fail(const char* what) {
    std::cerr << "weft_peer_mpi: " << what << ": " << std::strerror(errno) << "\n";
    MPI_Abort(MPI_COMM_WORLD, 1);
    std::abort();
  }
  std::string receive() {
    char text[4096];
    ssize_t got;
    do got = ::recv(socket_, text, sizeof text, 0);
    while (got < 0 && errno == EINTR);
    if (got < 0) fail("recv");
    return {text, static_cast<std::size_t>(got)};
  }
  void send(const std::string& line, const Address& to) {
    if (::sendto(socket_, line.data(), line.size(), 0, reinterpret_cast<const sockaddr*>(&to.path),
                 to.length) < 0)
      fail("send");
  }

  int socket_;
  int rank_;
  std::vector<Address> addresses_;
};

// One operation on one vector. The vector is kept until a command requests another length.
class Collective {
 public:
  Collective(int rank, int size, bool prepared) : rank_(rank), size_(size), prepared_(prepared) {}
  ~Collective() { forget_request(); }
  Collective(const Collective&) = delete;
  Collective& operator=(const Collective&) = delete;

  std::string impl() const { return std::string(kImpl) + (prepared_ ? "-prepared" : ""); }

  Answer carry_out(const Command& command) {
    prepare(command);
    Answer answer{impl(), size_, verify(), {}};
    if (!answer.verified) return answer;
    fill();  // Later sums grow to infinity; the time of an addition does not depend on the values.
    std::vector<double> mine;
    for (int sample = -command.warmup; sample < command.iterations; ++sample) {
      const double us = command.rewrite ? time_fresh(command.block) : time_block(command.block);
      if (sample >= 0) mine.push_back(us);
    }
    answer.us.resize(mine.size());  // the times of the slowest rank
    MPI_Reduce(mine.data(), answer.us.data(), static_cast<int>(mine.size()), MPI_DOUBLE, MPI_MAX, 0,
               MPI_COMM_WORLD);
    return answer;
  }

 private:
  struct Free {
    void operator()(float* data) const { std::free(data); }
  };

  std::unique_ptr<float, Free> allocate() const {
    std::unique_ptr<float, Free> memory(
        static_cast<float*>(std::aligned_alloc(4096, (bytes_ + 4095) / 4096 * 4096)));
    if (!memory) throw std::bad_alloc();
    return memory;
  }

  void prepare(const Command& command) {
    const std::size_t unit = sizeof(float) * static_cast<std::size_t>(size_);
    if (command.op != "barrier" && (command.bytes == 0 || command.bytes % unit != 0)) {
      throw BadCommand("bytes must be a positive multiple of 4 x ranks");
    }
    if (command.op == "ping_pong" && size_ < 2) throw BadCommand("ping_pong needs two ranks");
    if (prepared_ && !kHasPrepared) throw BadCommand("this MPI has no persistent collectives");
    if (prepared_ && command.op != "all_reduce")
      throw BadCommand("--prepared measures all_reduce only");
    op_ = command.op;
    if (command.bytes == bytes_ && (op_ != "all_to_all" || other_)) return;
    bytes_ = command.bytes;
    count_ = bytes_ / sizeof(float);
    forget_request();
    data_ = allocate();
    if (prepared_) prepare_all_reduce(data_.get(), static_cast<int>(count_), &request_);
    other_.reset();
    if (op_ == "all_to_all") other_ = allocate();
  }

  void forget_request() {
    if (request_ != MPI_REQUEST_NULL) MPI_Request_free(&request_);
  }

  std::size_t share() const { return count_ / static_cast<std::size_t>(size_); }
  bool from_rank_0() const { return op_ == "broadcast" || op_ == "ping_pong"; }

  void fill() {
    for (std::size_t i = 0; i < count_; ++i) {
      const bool theirs = (op_ == "all_gather" && i / share() != static_cast<std::size_t>(rank_)) ||
                          (from_rank_0() && rank_ != 0);
      data_.get()[i] = theirs ? -1.0F : element(rank_, i);
    }
  }

  float expected(std::size_t i) const {
    if (op_ == "all_reduce" || op_ == "reduce") return element_sum(size_, i);
    if (op_ == "all_to_all")
      return element(static_cast<int>(i / share()),
                     i % share() + share() * static_cast<std::size_t>(rank_));
    if (op_ == "reduce_scatter")
      return element_sum(size_, i + share() * static_cast<std::size_t>(rank_));
    if (op_ == "all_gather") return element(static_cast<int>(i / share()), i);
    return element(0, i);
  }

  // Runs and checks the operation. Returns the same on all ranks.
  bool verify() {
    fill();
    run();
    int right = 1;
    const bool bystander = (op_ == "ping_pong" && rank_ > 1) || (op_ == "reduce" && rank_ > 0);
    const float* result = op_ == "all_to_all" ? other_.get() : data_.get();
    const std::size_t checked = bystander || op_ == "barrier" ? 0
                                : op_ == "reduce_scatter"     ? share()
                                                              : count_;
    for (std::size_t i = 0; i < checked; ++i) right &= result[i] == expected(i);
    MPI_Allreduce(MPI_IN_PLACE, &right, 1, MPI_INT, MPI_LAND, MPI_COMM_WORLD);
    return right != 0;
  }

  double time_block(int calls) {
    MPI_Barrier(MPI_COMM_WORLD);
    const double start = MPI_Wtime();
    for (int call = 0; call < calls; ++call) run();
    const double us = (MPI_Wtime() - start) * 1e6 / calls;
    return op_ == "ping_pong" ? us / 2 : us;
  }

  // Like time_block(), but each rank writes its vector before each call.
  double time_fresh(int calls) {
    double sum = 0;
    for (int call = 0; call < calls; ++call) {
      rewrite();
      MPI_Barrier(MPI_COMM_WORLD);
      const double start = MPI_Wtime();
      run();
      sum += MPI_Wtime() - start;
    }
    return sum * 1e6 / calls / (op_ == "ping_pong" ? 2 : 1);
  }

  void rewrite() {
    if (from_rank_0() && rank_ != 0) return;
    const bool gathers = op_ == "all_gather";
    float* begin = data_.get() + (gathers ? share() * static_cast<std::size_t>(rank_) : 0);
    std::fill_n(begin, gathers ? share() : count_, static_cast<float>(1 + rank_));
  }

  void run() {
    const int count = static_cast<int>(count_);
    const int part = static_cast<int>(share());
    float* data = data_.get();
    if (prepared_) {
      MPI_Start(&request_);
      MPI_Wait(&request_, MPI_STATUS_IGNORE);
    } else if (op_ == "all_reduce")
      MPI_Allreduce(MPI_IN_PLACE, data, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    else if (op_ == "all_gather")
      MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, data, part, MPI_FLOAT, MPI_COMM_WORLD);
    else if (op_ == "reduce_scatter")
      MPI_Reduce_scatter_block(MPI_IN_PLACE, data, part, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    else if (op_ == "reduce")
      MPI_Reduce(rank_ == 0 ? MPI_IN_PLACE : data, data, count, MPI_FLOAT, MPI_SUM, 0,
                 MPI_COMM_WORLD);
    else if (op_ == "all_to_all")
      MPI_Alltoall(data, part, MPI_FLOAT, other_.get(), part, MPI_FLOAT, MPI_COMM_WORLD);
    else if (op_ == "broadcast")
      MPI_Bcast(data, count, MPI_FLOAT, 0, MPI_COMM_WORLD);
    else if (op_ == "barrier")
      MPI_Barrier(MPI_COMM_WORLD);
    else
      ping_pong(data, count);
  }

  void ping_pong(float* data, int count) {
    if (rank_ == 0) {
      MPI_Send(data, count, MPI_FLOAT, 1, 0, MPI_COMM_WORLD);
      MPI_Recv(data, count, MPI_FLOAT, 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    } else if (rank_ == 1) {
      MPI_Recv(data, count, MPI_FLOAT, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
      MPI_Send(data, count, MPI_FLOAT, 0, 0, MPI_COMM_WORLD);
    }
  }

  int rank_;
  int size_;
  bool prepared_;
  MPI_Request request_ = MPI_REQUEST_NULL;  // prepared: of data_
  std::string op_;
  std::size_t bytes_ = 0;
  std::size_t count_ = 0;
  std::unique_ptr<float, Free> data_;
  std::unique_ptr<float, Free> other_;  // all_to_all: the output
};

// Binds this rank to its entry in WEFT_BENCH_CORES ("0,8"), if it is set. Call it before
// MPI_Init(), so that MPI's memory is touched on that core. The launcher's variables tell the rank.
void bind_to_named_core() {
  const char* cores = std::getenv("WEFT_BENCH_CORES");
  const char* rank = nullptr;
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"})
    if (rank == nullptr) rank = std::getenv(name);
  if (cores == nullptr || rank == nullptr) return;
  for (int skipped = std::atoi(rank); skipped > 0 && cores != nullptr; --skipped) {
    cores = std::strchr(cores, ',');
    if (cores != nullptr) ++cores;
  }
  if (cores == nullptr) return;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(std::atoi(cores), &one);
  if (::sched_setaffinity(0, sizeof one, &one) != 0) {
    std::cerr << "weft_peer_mpi: cannot bind to core " << std::atoi(cores) << "\n";
    std::exit(1);
  }
}

void serve(int rank, int size, bool prepared) {
  Wakeup wakeup(rank, size);
  Collective collective(rank, size, prepared);
  while (true) {
    std::string answer;
    try {
      const auto command = parse_command(wakeup.next());
      if (!command) return;
      answer = to_json(*command, collective.carry_out(*command));
    } catch (const BadCommand& bad) {
      answer = error_to_json(collective.impl(), bad.what());
    }
    if (rank == 0) std::cout << answer << std::endl;
  }
}

}  // namespace
}  // namespace weft::bench

int main(int argc, char** argv) {
  weft::bench::bind_to_named_core();
  MPI_Init(&argc, &argv);
  int rank = 0;
  int size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  weft::bench::serve(rank, size, argc > 1 && std::string(argv[1]) == "--prepared");
  MPI_Finalize();
  return 0;
}
