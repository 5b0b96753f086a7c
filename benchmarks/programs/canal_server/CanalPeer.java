import com.alibaba.otter.canal.instance.manager.CanalInstanceWithManager;
import com.alibaba.otter.canal.instance.manager.model.Canal;
import com.alibaba.otter.canal.instance.manager.model.CanalParameter;
import com.alibaba.otter.canal.server.embedded.CanalServerWithEmbedded;
import com.alibaba.otter.canal.server.netty.CanalServerWithNetty;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.net.InetSocketAddress;
import java.util.Collections;
import java.util.List;

/**
 * Canal's own server with one destination, set up as its distribution is: a ring of 16 MiB, limited by bytes, and a
 * parallel parser. PORT DESTINATION MYSQL_HOST MYSQL_PORT USER PASSWORD FILE POSITION FILTER.
 *
 * It prints "serving" once it listens. After each line of standard input the destination begins again at the position,
 * which it then prints again: clients of a warm server can be measured more than once.
 */
public class CanalPeer {
    public static void main(String[] args) throws Exception {
        CanalParameter parameter = new CanalParameter();
        parameter.setZkClusters(Collections.<String>emptyList());
        parameter.setMetaMode(CanalParameter.MetaMode.MEMORY);
        parameter.setIndexMode(CanalParameter.IndexMode.MEMORY_META_FAILBACK);
        parameter.setHaMode(CanalParameter.HAMode.HEARTBEAT);
        parameter.setStorageMode(CanalParameter.StorageMode.MEMORY);
        parameter.setStorageBatchMode(CanalParameter.BatchMode.MEMSIZE);
        parameter.setMemoryStorageBufferSize(16 * 1024);
        parameter.setMemoryStorageBufferMemUnit(1024);
        parameter.setMemoryStorageRawEntry(true);
        parameter.setDdlIsolation(false);
        parameter.setSourcingType(CanalParameter.SourcingType.MYSQL);
        InetSocketAddress address = new InetSocketAddress(args[2], Integer.parseInt(args[3]));
        parameter.setGroupDbAddresses(List.of(List.of(
            new CanalParameter.DataSourcing(CanalParameter.SourcingType.MYSQL, address))));
        parameter.setDbUsername(args[4]);
        parameter.setDbPassword(args[5]);
        parameter.setPositions(List.of("{\"journalName\":\"" + args[6] + "\",\"position\":" + args[7] + "}"));
        parameter.setSlaveId(71901L);
        parameter.setDefaultConnectionTimeoutInSeconds(30);
        parameter.setConnectionCharset("UTF-8");
        parameter.setConnectionCharsetNumber((byte) 33);
        parameter.setReceiveBufferSize(16 * 1024);
        parameter.setSendBufferSize(16 * 1024);
        parameter.setDetectingEnable(false);
        parameter.setTsdbEnable(false);
        parameter.setParallel(true);
        Canal canal = new Canal();
        canal.setId(1L);
        canal.setName(args[1]);
        canal.setCanalParameter(parameter);

        CanalServerWithEmbedded embedded = CanalServerWithEmbedded.instance();
        embedded.setCanalInstanceGenerator(destination -> new CanalInstanceWithManager(canal, args[8]));
        CanalServerWithNetty server = CanalServerWithNetty.instance();
        server.setIp("127.0.0.1");
        server.setPort(Integer.parseInt(args[0]));
        server.start();
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        do {
            embedded.start(args[1]);
            System.out.println("serving");
            if (lines.readLine() == null) {
                break;
            }
            embedded.stop(args[1]);
        } while (true);
        System.exit(0);
    }
}
