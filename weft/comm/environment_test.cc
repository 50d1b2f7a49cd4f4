#include "weft/comm/environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/base/error.h"

namespace weft::comm {
namespace {

using ::testing::HasSubstr;
using Map = std::map<std::string, std::string>;

Identity discover(const Map& variables, const IdentityOptions& options = {}) {
  return comm::discover(Environment(variables), options);
}

// Returns the message of the kBadConfig that discover() must throw.
std::string complaint(const Map& variables, const IdentityOptions& options = {}) {
  try {
    const auto me = discover(variables, options);
    ADD_FAILURE() << "no error, but " << me.banner();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Errc::kBadConfig);
    return error.message();
  }
  return "";
}

Map with(Map base, const Map& more) {
  for (const auto& [name, value] : more) base[name] = value;
  return base;
}

// As printed by `torchrun --no-python --nproc-per-node 2 --nnodes 2 env` of torch 2.13 on the
// second node.
const Map kTorchrun = {{"RANK", "3"},
                       {"WORLD_SIZE", "4"},
                       {"LOCAL_RANK", "1"},
                       {"LOCAL_WORLD_SIZE", "2"},
                       {"GROUP_RANK", "1"},
                       {"GROUP_WORLD_SIZE", "2"},
                       {"MASTER_ADDR", "10.0.0.7"},
                       {"MASTER_PORT", "29400"},
                       {"TORCHELASTIC_RUN_ID", "job7"},
                       {"TORCHELASTIC_RESTART_COUNT", "2"},
                       {"TORCHELASTIC_USE_AGENT_STORE", "True"}};

// As printed by `mpirun -np 2 env` of Open MPI 4.1.
const Map kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "1"},       {"OMPI_COMM_WORLD_SIZE", "2"},
                      {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                      {"OMPI_COMM_WORLD_NODE_RANK", "1"},  {"PMIX_NAMESPACE", "2158034945"}};

// srun -N 3 --ntasks 7, as documented in srun(1), "output environment variables".
const Map kSlurm = {{"SLURM_JOB_ID", "123456"},
                    {"SLURM_STEP_ID", "0"},
                    {"SLURM_PROCID", "5"},
                    {"SLURM_NTASKS", "7"},
                    {"SLURM_STEP_NUM_TASKS", "7"},
                    {"SLURM_LOCALID", "2"},
                    {"SLURM_NODEID", "1"},
                    {"SLURM_STEP_TASKS_PER_NODE", "3(x2),1"},
                    {"SLURM_STEP_NODELIST", "node[10,20-21]"},
                    {"SLURM_RESTART_COUNT", "1"}};

TEST(Discover, IsAWorldOfOneByDefault) {
  const auto me = discover(Map{{"HOME", "/root"}});
  EXPECT_EQ(me.rank, 0);
  EXPECT_EQ(me.world, 1);
  EXPECT_EQ(me.master_port, 0);
  EXPECT_EQ(me.source, "alone");
  EXPECT_EQ(me.banner(), "rank 0 of 1 (local 0 of 1, node 0), from alone");
}

TEST(Discover, NeedsNoStoreForAWorldOfOne) {
  const auto me = discover({{"RANK", "0"}, {"WORLD_SIZE", "1"}});
  EXPECT_EQ(me.world, 1);
  EXPECT_EQ(me.master_addr, "127.0.0.1");
  EXPECT_EQ(me.master_port, 0);
}

TEST(Discover, ReadsTorchrunAndLeavesTheStoreToTheAgent) {
  const auto me = discover(kTorchrun);
  EXPECT_EQ(me.rank, 3);
  EXPECT_EQ(me.world, 4);
  EXPECT_EQ(me.local_rank, 1);
  EXPECT_EQ(me.local_world, 2);
  EXPECT_EQ(me.node_rank, 1);
  EXPECT_EQ(me.master_addr, "10.0.0.7");
  EXPECT_EQ(me.master_port, 29400);
  EXPECT_EQ(me.restart_count, 2);
  EXPECT_EQ(me.run_id, "job7");
  EXPECT_TRUE(me.store_is_hosted_elsewhere);
  EXPECT_FALSE(me.node_level);
  EXPECT_EQ(me.banner(),
            "rank 3 of 4 (local 1 of 2, node 1), store at 10.0.0.7:29400 (the launcher's), from "
            "torchrun or weft run, run job7, restart 2");
}

TEST(Discover, LetsRankZeroHostTheStoreWhenTorchrunsAgentDoesNot) {
  EXPECT_FALSE(discover(with(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "False"}}))
                   .store_is_hosted_elsewhere);
}

TEST(Discover, RequiresTheStoreAddressThatTorchrunAlwaysSets) {
  EXPECT_THAT(complaint(with(kTorchrun, {{"MASTER_PORT", ""}})), HasSubstr("MASTER_PORT"));
}

TEST(Discover, ReadsOpenMpiAndUsesLoopbackOnOneHost) {
  const auto me = discover(kOpenMpi);
  EXPECT_EQ(me.rank, 1);
  EXPECT_EQ(me.world, 2);
  EXPECT_EQ(me.local_rank, 1);
  EXPECT_EQ(me.local_world, 2);
  EXPECT_EQ(me.node_rank, 0);
  EXPECT_EQ(me.master_addr, "127.0.0.1");
  EXPECT_GE(me.master_port, 10000);
  EXPECT_EQ(me.source, "Open MPI");
}

TEST(Discover, GivesEachMpirunJobItsOwnPort) {
  const auto peer = discover(
      with(kOpenMpi, {{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "0"}}));
  const auto stranger = discover(with(kOpenMpi, {{"PMIX_NAMESPACE", "2158034946"}}));
  EXPECT_EQ(discover(kOpenMpi).master_port, peer.master_port);
  EXPECT_NE(discover(kOpenMpi).master_port, stranger.master_port);
}

TEST(Discover, UsesMpiForTheRendezvousWhenMpirunSpansHostsAndMasterAddrIsUnset) {
  const auto spread = with(kOpenMpi, {{"OMPI_COMM_WORLD_SIZE", "4"}});
  EXPECT_TRUE(discover(spread).meets_through_mpi);
  EXPECT_EQ(discover(spread).master_addr, "");
  EXPECT_THAT(discover(spread).banner(), HasSubstr("rendezvous through MPI, from Open MPI"));
  const auto me = discover(with(spread, {{"MASTER_ADDR", "head"}}));
  EXPECT_TRUE(me.mpi);
  EXPECT_FALSE(me.meets_through_mpi);
  EXPECT_EQ(me.master_addr, "head");
  EXPECT_EQ(me.master_port, 29500);
}

TEST(Discover, UsesMpiForTheRendezvousOnOneHostIfTheLauncherSetsNoJobId) {
  const Map hydra = {
      {"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}};
  EXPECT_TRUE(discover(hydra).meets_through_mpi);
  EXPECT_EQ(discover(hydra).master_addr,
            "127.0.0.1");  // the address that a weft without MPI uses
  EXPECT_FALSE(discover(with(hydra, {{"MASTER_PORT", "1234"}})).meets_through_mpi);
  EXPECT_FALSE(discover(kOpenMpi).meets_through_mpi);
  EXPECT_FALSE(discover(with(hydra, {{"PMI_RANK", "0"},
                                     {"PMI_SIZE", "1"},
                                     {"MPI_LOCALRANKID", "0"},
                                     {"MPI_LOCALNRANKS", "1"}}))
                   .meets_through_mpi);
}

TEST(Discover, AsksForAMasterAddressWhenALauncherWithoutMpiSpansHosts) {
  const Map spread = {{"MV2_COMM_WORLD_RANK", "1"},
                      {"MV2_COMM_WORLD_SIZE", "4"},
                      {"MV2_COMM_WORLD_LOCAL_RANK", "1"},
                      {"MV2_COMM_WORLD_LOCAL_SIZE", "2"}};
  EXPECT_THAT(complaint(spread), HasSubstr("-x MASTER_ADDR"));
}

TEST(Discover, ReadsHydra) {
  const auto me = discover({{"PMI_RANK", "2"},
                            {"PMI_SIZE", "4"},
                            {"MPI_LOCALRANKID", "0"},
                            {"MPI_LOCALNRANKS", "2"},
                            {"MASTER_ADDR", "h"}});
  EXPECT_EQ(me.rank, 2);
  EXPECT_EQ(me.local_rank, 0);
  EXPECT_EQ(me.local_world, 2);
  EXPECT_EQ(me.node_rank, 1);
  EXPECT_EQ(me.source, "MPICH (Hydra)");
}

TEST(Discover, ReadsMvapich) {
  const auto me = discover({{"MV2_COMM_WORLD_RANK", "1"},
                            {"MV2_COMM_WORLD_SIZE", "2"},
                            {"MV2_COMM_WORLD_LOCAL_RANK", "1"},
                            {"MV2_COMM_WORLD_LOCAL_SIZE", "2"}});
  EXPECT_EQ(me.rank, 1);
  EXPECT_EQ(me.master_addr, "127.0.0.1");
  EXPECT_EQ(me.source, "MVAPICH");
}

TEST(Discover, ReadsSrunAndUsesTheFirstHostAndAPortOfTheJob) {
  const auto me = discover(kSlurm);
  EXPECT_EQ(me.rank, 5);
  EXPECT_EQ(me.world, 7);
  EXPECT_EQ(me.local_rank, 2);
  EXPECT_EQ(me.local_world, 3);
  EXPECT_EQ(me.node_rank, 1);
  EXPECT_EQ(me.master_addr, "node10");
  EXPECT_EQ(me.master_port, 10000 + 123456 % 20000);
  EXPECT_EQ(me.restart_count, 1);
  EXPECT_EQ(me.run_id, "123456");
  EXPECT_EQ(me.source, "Slurm");
}

TEST(Discover, CountsTheTasksOfTheLastAndSmallerSlurmNode) {
  EXPECT_EQ(
      discover(with(kSlurm, {{"SLURM_PROCID", "6"}, {"SLURM_LOCALID", "0"}, {"SLURM_NODEID", "2"}}))
          .local_world,
      1);
}

TEST(Discover, IsAloneInTheBatchShellOfSbatch) {
  auto batch = kSlurm;
  batch.erase("SLURM_STEP_ID");
  EXPECT_EQ(discover(batch).world, 1);
}

TEST(Discover, IsAloneInTheInteractiveStepOfSalloc) {
  const auto me = discover(with(kSlurm, {{"SLURM_STEP_ID", "4294967290"},
                                         {"SLURM_PROCID", "0"},
                                         {"SLURM_LOCALID", "0"},
                                         {"SLURM_NODEID", "0"},
                                         {"SLURM_STEP_NUM_TASKS", "1"},
                                         {"SLURM_STEP_TASKS_PER_NODE", "1"},
                                         {"SLURM_STEP_NODELIST", "node10"}}));
  EXPECT_EQ(me.world, 1);
}

TEST(Discover, AcceptsHorovodsNames) {
  const auto me = discover({{"HOROVOD_RANK", "3"},
                            {"HOROVOD_SIZE", "4"},
                            {"HOROVOD_LOCAL_RANK", "1"},
                            {"HOROVOD_LOCAL_SIZE", "2"},
                            {"HOROVOD_CROSS_RANK", "1"},
                            {"HOROVOD_CROSS_SIZE", "2"},
                            {"MASTER_ADDR", "h"}});
  EXPECT_EQ(me.rank, 3);
  EXPECT_EQ(me.local_rank, 1);
  EXPECT_EQ(me.node_rank, 1);
  EXPECT_EQ(me.source, "Horovod");
}

TEST(Discover, ReadsAnIndexedJobAsOneRankAPod) {
  const auto me =
      discover({{"JOB_COMPLETION_INDEX", "2"}, {"WORLD_SIZE", "3"}, {"MASTER_ADDR", "job-0.svc"}});
  EXPECT_EQ(me.rank, 2);
  EXPECT_EQ(me.world, 3);
  EXPECT_EQ(me.node_rank, 2);
  EXPECT_EQ(me.local_world, 1);
  EXPECT_TRUE(me.node_level);
  EXPECT_EQ(me.master_addr, "job-0.svc");
}

TEST(Discover, NamesTheVariablesThatAnIndexedJobDoesNotSet) {
  EXPECT_THAT(complaint({{"JOB_COMPLETION_INDEX", "0"}}), HasSubstr("WORLD_SIZE"));
  EXPECT_THAT(
      complaint({{"JOB_COMPLETION_INDEX", "1"}, {"WORLD_SIZE", "3"}, {"HOSTNAME", "fit-1"}}),
      HasSubstr("MASTER_ADDR is not set; set it to fit-0.<"));
  EXPECT_EQ(discover({{"JOB_COMPLETION_INDEX", "0"}, {"WORLD_SIZE", "1"}}).source, "alone");
}

TEST(Discover, ReadsKubeflowsNodes) {
  const Map pet = {{"PET_NNODES", "2"},
                   {"PET_NPROC_PER_NODE", "1"},
                   {"PET_NODE_RANK", "1"},
                   {"PET_MASTER_ADDR", "j-node-0-0.j"},
                   {"PET_MASTER_PORT", "29500"}};
  const auto me = discover(pet);
  EXPECT_EQ(me.rank, 1);
  EXPECT_EQ(me.world, 2);
  EXPECT_TRUE(me.node_level);
  EXPECT_EQ(me.master_addr, "j-node-0-0.j");
  EXPECT_THAT(complaint(with(pet, {{"PET_NPROC_PER_NODE", "4"}})),
              HasSubstr("set nprocPerNode to 1"));
  EXPECT_THAT(complaint(with(pet, {{"PET_NNODES", "1:2"}})), HasSubstr("rendezvous"));
}

TEST(Discover, TreatsRankAndWorldSizeWithoutLocalRankAsNodes) {
  const auto me = discover({{"RANK", "1"},
                            {"WORLD_SIZE", "2"},
                            {"MASTER_ADDR", "fit-master-0"},
                            {"MASTER_PORT", "23456"}});
  EXPECT_TRUE(me.node_level);
  EXPECT_EQ(me.node_rank, 1);
  EXPECT_EQ(me.local_rank, 0);
  EXPECT_EQ(me.local_world, 1);
  EXPECT_THAT(me.banner(), HasSubstr("one rank per node"));
}

TEST(Discover, ReadsRankWorldSizeAndMasterSetByHand) {
  const auto me = discover({{"RANK", "3"},
                            {"WORLD_SIZE", "4"},
                            {"LOCAL_RANK", "1"},
                            {"LOCAL_WORLD_SIZE", "2"},
                            {"MASTER_ADDR", "h"}});
  EXPECT_FALSE(me.node_level);
  EXPECT_EQ(me.node_rank, 1);
  EXPECT_EQ(me.local_rank, 1);
  EXPECT_EQ(me.master_port, 29500);
  EXPECT_FALSE(me.store_is_hosted_elsewhere);
}

TEST(Discover, PrefersTheProgramsOptions) {
  IdentityOptions options;
  options.rank = 0;
  options.world = 2;
  options.master_addr = "127.0.0.1";
  options.master_port = 1234;
  const auto me = discover(kTorchrun, options);
  EXPECT_EQ(me.rank, 0);
  EXPECT_EQ(me.world, 2);
  EXPECT_EQ(me.master_port, 1234);
  EXPECT_EQ(me.source, "options");
  EXPECT_FALSE(me.store_is_hosted_elsewhere);
}

TEST(Discover, NamesBothSourcesAndBothValuesWhenTheyDisagree) {
  const auto text = complaint(with(kOpenMpi, {{"RANK", "1"}, {"WORLD_SIZE", "4"}}));
  EXPECT_THAT(text, HasSubstr("Open MPI (OMPI_COMM_WORLD_RANK=1, OMPI_COMM_WORLD_SIZE=2)"));
  EXPECT_THAT(text, HasSubstr("RANK and WORLD_SIZE (RANK=1, WORLD_SIZE=4)"));
}

TEST(Discover, RejectsATorchrunInsideALargerMpirun) {
  EXPECT_THAT(
      complaint(with(kTorchrun, {{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "8"}})),
      HasSubstr("disagree"));
}

TEST(Discover, AllowsOneTorchrunPerNodeUnderMpirunOrSrun) {
  EXPECT_EQ(
      discover(with(kTorchrun, {{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}}))
          .rank,
      3);
  EXPECT_EQ(discover(with(kTorchrun,
                          {{"SLURM_STEP_ID", "0"}, {"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "2"}}))
                .rank,
            3);
  EXPECT_EQ(discover(with(kTorchrun,
                          {{"SLURM_STEP_ID", "0"}, {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "1"}}))
                .rank,
            3);
}

TEST(Discover, AllowsMpirunsDaemonsInASlurmStep) {
  EXPECT_EQ(discover(with(kOpenMpi,
                          {{"SLURM_STEP_ID", "0"}, {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "3"}}))
                .rank,
            1);
}

TEST(Discover, FillsInFromALaterSourceThatAgrees) {
  const auto me = discover(with(kSlurm, {{"PMI_RANK", "5"}, {"PMI_SIZE", "7"}}));
  EXPECT_EQ(me.source, "MPICH (Hydra)");
  EXPECT_EQ(me.local_rank, 2);
  EXPECT_EQ(me.master_addr, "node10");
}

TEST(Discover, RejectsRankWithoutWorldSizeAndTheReverse) {
  EXPECT_THAT(complaint({{"RANK", "0"}}), HasSubstr("WORLD_SIZE is not set"));
  EXPECT_THAT(complaint({{"WORLD_SIZE", "4"}}), HasSubstr("RANK is not set"));
  EXPECT_EQ(discover({{"WORLD_SIZE", "1"}}).world, 1);
}

TEST(Discover, RejectsInvalidNumbersAndRanksOutOfRange) {
  EXPECT_THAT(complaint(with(kTorchrun, {{"RANK", "three"}})), HasSubstr("RANK=three"));
  EXPECT_THAT(complaint(with(kTorchrun, {{"RANK", "-1"}})), HasSubstr("RANK=-1"));
  EXPECT_THAT(complaint(with(kTorchrun, {{"RANK", "4"}})), HasSubstr("from 0 to 3"));
  EXPECT_THAT(complaint(with(kTorchrun, {{"WORLD_SIZE", "0"}, {"RANK", "0"}})),
              HasSubstr("at least one"));
  EXPECT_THAT(complaint(with(kTorchrun, {{"LOCAL_RANK", "2"}})), HasSubstr("local rank 2 of 2"));
  EXPECT_THAT(complaint(with(kTorchrun, {{"MASTER_PORT", "65536"}})), HasSubstr("65535"));
}

TEST(Environment, TreatsAnEmptyValueAsUnset) {
  const Environment env(Map{{"RANK", ""}});
  EXPECT_FALSE(env.has("RANK"));
  EXPECT_EQ(env.number("RANK"), std::nullopt);
}

TEST(Environment, ReadsTheVariablesOfTheProcess) {
  ASSERT_EQ(setenv("WEFT_ENVIRONMENT_TEST", "a=b", 1), 0);
  EXPECT_EQ(Environment::process().get("WEFT_ENVIRONMENT_TEST"), "a=b");
}

}  // namespace
}  // namespace weft::comm
