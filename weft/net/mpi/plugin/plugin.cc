// The table of internal/abi.h over the MPI that this file is compiled with.
#include <mpi.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "weft/base/dtype.h"
#include "weft/net/mpi/internal/abi.h"
#include "weft/schedule/schedule.h"

namespace weft::net::mpi::internal {
namespace {

using schedule::Collective;

Reduce reduce_of_weft = nullptr;

// Handles are numbers in one MPI, pointers in another.
// NOLINTBEGIN(bugprone-sizeof-expression)
template <class Ours, class Theirs>
Ours wrap(Theirs theirs) {
  static_assert(sizeof(Theirs) <= sizeof(Ours));
  Ours ours{};
  std::memcpy(&ours, &theirs, sizeof theirs);
  return ours;
}
template <class Theirs, class Ours>
Theirs unwrap(Ours ours) {
  Theirs theirs;
  std::memcpy(&theirs, &ours, sizeof theirs);
  return theirs;
}
// NOLINTEND(bugprone-sizeof-expression)
MPI_Comm mpi(Comm comm) { return unwrap<MPI_Comm>(comm); }

// Returns the request that `start` makes.
template <class Start>
int begin(Request* request, const Start& start) {
  MPI_Request made = MPI_REQUEST_NULL;
  const int code = start(&made);
  *request = wrap<Request>(made);
  return code;
}

MPI_Datatype type_of(DType dtype) {
  switch (dtype) {
    case DType::kF64: return MPI_DOUBLE;
    case DType::kF32: return MPI_FLOAT;
    case DType::kF16:
    case DType::kBF16: return MPI_UINT16_T;  // MPI only moves it; weft reduces it
    case DType::kI64: return MPI_INT64_T;
    case DType::kI32: return MPI_INT32_T;
    case DType::kI16: return MPI_INT16_T;
    case DType::kI8: return MPI_INT8_T;
    case DType::kU8:
    case DType::kBool: return MPI_UINT8_T;
  }
  return MPI_DATATYPE_NULL;
}

constexpr int kDTypes = 10, kOps = 8;

// MPI does not pass the type to an operation, so each pair of type and operation has its own
// function.
template <int pair>
void user_function(void* in, void* inout, int* count, MPI_Datatype*) {
  reduce_of_weft(pair / kOps, pair % kOps, in, inout, *count);
}
template <std::size_t... pair>
constexpr std::array<MPI_User_function*, sizeof...(pair)> user_functions(
    std::index_sequence<pair...>) {
  return {&user_function<static_cast<int>(pair)>...};
}
constexpr auto kUserFunctions = user_functions(std::make_index_sequence<kDTypes * kOps>());
std::array<MPI_Op, kDTypes * kOps> user_ops;

int make_user_ops() {
  for (std::size_t pair = 0; pair < user_ops.size(); ++pair) {
    if (const int code = MPI_Op_create(kUserFunctions[pair], 1, &user_ops[pair]);
        code != MPI_SUCCESS)
      return code;
  }
  return MPI_SUCCESS;
}

// MPI's own operation, if it has the same meaning as weft's.
MPI_Op op_of(DType dtype, ReduceOp op) {
  const bool narrow = dtype == DType::kF16 || dtype == DType::kBF16 || dtype == DType::kBool;
  // With a NaN in a minimum, the result is NaN in weft, but unspecified in MPI.
  const bool ordered = !is_floating(dtype);
  if (!narrow) {
    switch (op) {
      case ReduceOp::kSum: return MPI_SUM;
      case ReduceOp::kProduct: return MPI_PROD;
      case ReduceOp::kMin:
        if (ordered) return MPI_MIN;
        break;
      case ReduceOp::kMax:
        if (ordered) return MPI_MAX;
        break;
      case ReduceOp::kBitAnd: return MPI_BAND;
      case ReduceOp::kBitOr: return MPI_BOR;
      case ReduceOp::kBitXor: return MPI_BXOR;
      case ReduceOp::kAvg: break;
    }
  }
  return user_ops[static_cast<std::size_t>(dtype) * kOps + static_cast<std::size_t>(op)];
}

int initialize(std::int32_t wanted, std::int32_t* level, std::int32_t* was_initialized) {
  constexpr int kLevels[] = {MPI_THREAD_SINGLE, MPI_THREAD_FUNNELED, MPI_THREAD_SERIALIZED,
                             MPI_THREAD_MULTIPLE};
  int initialized = 0, given = 0;
  MPI_Initialized(&initialized);
  *was_initialized = initialized;
  const int code = initialized != 0 ? MPI_Query_thread(&given)
                                    : MPI_Init_thread(nullptr, nullptr, kLevels[wanted], &given);
  if (code != MPI_SUCCESS) return code;
  if (initialized == 0) MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  *level =
      static_cast<std::int32_t>(std::find(std::begin(kLevels), std::end(kLevels), given) - kLevels);
  return make_user_ops();
}

int finalize() {
  int done = 0;
  MPI_Finalized(&done);
  return done != 0 ? MPI_SUCCESS : MPI_Finalize();
}

int world(std::int32_t* rank, std::int32_t* size) {
  const int code = MPI_Comm_rank(MPI_COMM_WORLD, rank);
  return code != MPI_SUCCESS ? code : MPI_Comm_size(MPI_COMM_WORLD, size);
}

void version(char* text, std::int32_t size) {
  char whole[MPI_MAX_LIBRARY_VERSION_STRING];
  int length = 0;
  MPI_Get_library_version(whole, &length);
  const auto line =
      std::min<std::size_t>(std::strcspn(whole, ",\n"), static_cast<std::size_t>(size) - 1);
  std::memcpy(text, whole, line);
  text[line] = '\0';
}

void describe(int code, char* text, std::int32_t size) {
  char whole[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(code, whole, &length);
  std::strncpy(text, whole, static_cast<std::size_t>(size) - 1);
  text[size - 1] = '\0';
}

int form(const std::int32_t* ranks, std::int32_t count, std::int32_t tag, Comm* comm) {
  MPI_Group all = MPI_GROUP_NULL, members = MPI_GROUP_NULL;
  MPI_Comm made = MPI_COMM_NULL;
  int code = MPI_Comm_group(MPI_COMM_WORLD, &all);
  if (code == MPI_SUCCESS) code = MPI_Group_incl(all, count, ranks, &members);
  if (code == MPI_SUCCESS) code = MPI_Comm_create_group(MPI_COMM_WORLD, members, tag, &made);
  if (code == MPI_SUCCESS) code = MPI_Comm_set_errhandler(made, MPI_ERRORS_RETURN);
  if (members != MPI_GROUP_NULL) MPI_Group_free(&members);
  if (all != MPI_GROUP_NULL) MPI_Group_free(&all);
  *comm = wrap<Comm>(made);
  return code;
}

int free_comm(Comm* comm) {
  MPI_Comm theirs = mpi(*comm);
  return MPI_Comm_free(&theirs);
}

int isend(Comm comm, const void* data, std::uint64_t bytes, std::int32_t peer, std::int32_t tag,
          Request* request) {
  return begin(request, [&](MPI_Request* made) {
    return MPI_Isend(data, static_cast<int>(bytes), MPI_BYTE, peer, tag, mpi(comm), made);
  });
}

int irecv(Comm comm, void* data, std::uint64_t bytes, std::int32_t peer, std::int32_t tag,
          Request* request) {
  const int source = peer == kAnySource ? MPI_ANY_SOURCE : peer;
  return begin(request, [&](MPI_Request* made) {
    return MPI_Irecv(data, static_cast<int>(bytes), MPI_BYTE, source, tag, mpi(comm), made);
  });
}

int start(Comm comm, const Call* call, Request* request) {
  const MPI_Comm c = mpi(comm);
  const auto type = type_of(static_cast<DType>(call->dtype));
  const auto op = [&] {
    return op_of(static_cast<DType>(call->dtype), static_cast<ReduceOp>(call->op));
  };
  const void* in = call->input == nullptr ? MPI_IN_PLACE : call->input;
  void* out = call->output;
  const int n = call->count, root = call->root;
  return begin(request, [&](MPI_Request* made) {
    switch (static_cast<Collective>(call->collective)) {
      case Collective::kAllReduce: return MPI_Iallreduce(in, out, n, type, op(), c, made);
      case Collective::kReduceScatter:
        return MPI_Ireduce_scatter_block(in, out, n, type, op(), c, made);
      case Collective::kAllGather: return MPI_Iallgather(in, n, type, out, n, type, c, made);
      case Collective::kBroadcast: return MPI_Ibcast(out, n, type, root, c, made);
      case Collective::kReduce: return MPI_Ireduce(in, out, n, type, op(), root, c, made);
      case Collective::kGather: return MPI_Igather(in, n, type, out, n, type, root, c, made);
      case Collective::kScatter: return MPI_Iscatter(in, n, type, out, n, type, root, c, made);
      case Collective::kAllToAll: return MPI_Ialltoall(in, n, type, out, n, type, c, made);
      case Collective::kBarrier: return MPI_Ibarrier(c, made);
    }
    return static_cast<int>(MPI_ERR_OTHER);
  });
}

int test(Request* request, std::int32_t* done, Arrival* arrival) {
  auto theirs = unwrap<MPI_Request>(*request);
  MPI_Status status;
  int complete = 0, canceled = 0, count = 0;
  const int code = MPI_Test(&theirs, &complete, &status);
  *request = wrap<Request>(theirs);
  *done = complete;
  if (code != MPI_SUCCESS || complete == 0 || arrival == nullptr) return code;
  MPI_Test_cancelled(&status, &canceled);
  if (canceled == 0) MPI_Get_count(&status, MPI_BYTE, &count);
  *arrival = {status.MPI_SOURCE, canceled, static_cast<std::uint64_t>(count)};
  return code;
}

int cancel(Request* request) {
  auto theirs = unwrap<MPI_Request>(*request);
  if (theirs == MPI_REQUEST_NULL) return MPI_SUCCESS;
  return MPI_Cancel(&theirs);
}

constexpr Table kTable = {kAbi,
#ifdef OPEN_MPI
                          "openmpi",
#else
                          "mpich",
#endif
                          initialize, finalize, world, version, describe, form,
                          free_comm,  isend,    irecv, start,   test,     cancel};

}  // namespace
}  // namespace weft::net::mpi::internal

extern "C" __attribute__((visibility("default"))) const weft::net::mpi::internal::Table*
weft_mpi_table(weft::net::mpi::internal::Reduce reduce) {
  weft::net::mpi::internal::reduce_of_weft = reduce;
  return &weft::net::mpi::internal::kTable;
}
