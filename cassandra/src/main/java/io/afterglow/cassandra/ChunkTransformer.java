package io.afterglow.cassandra;

import java.lang.instrument.ClassFileTransformer;
import java.security.ProtectionDomain;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashSet;
import java.util.Set;
import java.util.concurrent.atomic.AtomicBoolean;
import org.objectweb.asm.ClassReader;
import org.objectweb.asm.ClassVisitor;
import org.objectweb.asm.ClassWriter;
import org.objectweb.asm.Label;
import org.objectweb.asm.MethodVisitor;
import org.objectweb.asm.Opcodes;

/**
 * Puts calls of {@link ChunkHooks} around the methods of Cassandra that read a chunk and that tell
 * of deletions. The method itself stays as it is, under another name; what is thrown by our calls
 * goes no further. A class of another shape than expected is left alone.
 */
final class ChunkTransformer implements ClassFileTransformer {
  private static final String UTIL = "org/apache/cassandra/io/util/";
  private static final String HOOKS = "io/afterglow/cassandra/ChunkHooks";
  private static final String READER = "io/afterglow/cassandra/HookedReader";
  private static final String TRACKER = "org/apache/cassandra/db/lifecycle/Tracker";
  private static final String READ_CHUNK = "(JLjava/nio/ByteBuffer;)V";
  private static final String DELETING =
      "(Lorg/apache/cassandra/io/sstable/format/SSTableReader;)V";
  private static final String PREFIX = "afterglow$";
  private static final int API = Opcodes.ASM7;

  /** The readers whose chunks are cached. Others, such as those of direct I/O, serve compaction. */
  private static final Set<String> READERS =
      Collections.unmodifiableSet(
          new HashSet<>(
              Arrays.asList(
                  UTIL + "CompressedChunkReader$Standard",
                  UTIL + "CompressedChunkReader$Mmap",
                  UTIL + "SimpleChunkReader")));

  private final Runnable onFirst;
  private final AtomicBoolean begun = new AtomicBoolean();

  /**
   * @param onFirst run when the first of the classes is loaded, by the thread that loads it
   */
  ChunkTransformer(Runnable onFirst) {
    this.onFirst = onFirst;
  }

  /** All that must be found for the cache to work, as names of classes. */
  static Set<String> wanted() {
    Set<String> names = new HashSet<>(READERS);
    names.add(TRACKER);
    return names;
  }

  @Override
  public byte[] transform(
      ClassLoader loader, String name, Class<?> old, ProtectionDomain domain, byte[] bytes) {
    if (name == null || old != null || !(READERS.contains(name) || TRACKER.equals(name))) {
      return null;
    }
    try {
      if (begun.compareAndSet(false, true)) {
        onFirst.run();
      }
      return change(name, bytes);
    } catch (Throwable e) {
      // Left alone. If the cache is open already, it is off from now on. A class without the calls
      // would neither be cached nor report deletions.
      ChunkHooks.lost(name, e);
      return null;
    }
  }

  /**
   * That every class that is loaded already has its calls. Another agent may have changed one in a
   * way that we do not expect, or have had it loaded before we were there.
   *
   * @throws ConfigException that names the class
   */
  static void checkLoaded(Class<?>... loaded) throws ConfigException {
    for (Class<?> each : loaded) {
      String name = each.getName().replace('.', '/');
      boolean hooked =
          READERS.contains(name)
              ? HookedReader.class.isAssignableFrom(each)
              : !TRACKER.equals(name) || tellsOfDeletions(each);
      if (!hooked) {
        throw new ConfigException(
            each.getName()
                + " was loaded without our calls: put -javaagent:afterglow-cassandra.jar before"
                + " other agents");
      }
    }
  }

  private static boolean tellsOfDeletions(Class<?> tracker) {
    return Arrays.stream(tracker.getDeclaredMethods())
        .anyMatch(method -> method.getName().equals(PREFIX + "notifyDeleting"));
  }

  /** The class with the calls in it; fails if it is not as expected. */
  static byte[] change(String name, byte[] bytes) {
    ClassReader reader = new ClassReader(bytes);
    ClassWriter writer = new ClassWriter(reader, ClassWriter.COMPUTE_MAXS);
    Hooker hooker = new Hooker(writer, name);
    reader.accept(hooker, 0);
    if (hooker.hooked != 1) {
      throw new IllegalStateException(name + " has " + hooker.hooked + " methods to be hooked");
    }
    return writer.toByteArray();
  }

  private static final class Hooker extends ClassVisitor {
    private final String owner;
    private final boolean tracker;
    private int hooked;

    Hooker(ClassVisitor next, String owner) {
      super(API, next);
      this.owner = owner;
      this.tracker = owner.equals(TRACKER);
    }

    @Override
    public void visit(
        int version, int access, String name, String signature, String parent, String[] faces) {
      String[] all = faces;
      if (!tracker) {
        all = Arrays.copyOf(faces, faces.length + 1);
        all[faces.length] = READER;
      }
      super.visit(version, access, name, signature, parent, all);
    }

    @Override
    public MethodVisitor visitMethod(
        int access, String name, String form, String signature, String[] thrown) {
      boolean read = !tracker && name.equals("readChunk") && form.equals(READ_CHUNK);
      boolean deleting = tracker && name.equals("notifyDeleting") && form.equals(DELETING);
      if (!read && !deleting || (access & (Opcodes.ACC_STATIC | Opcodes.ACC_ABSTRACT)) != 0) {
        return super.visitMethod(access, name, form, signature, thrown);
      }
      hooked++;
      MethodVisitor method = super.visitMethod(access, name, form, signature, thrown);
      method.visitCode();
      if (read) {
        aroundRead(method);
      } else {
        beforeDeletion(method);
      }
      method.visitMaxs(0, 0);
      method.visitEnd();
      return super.visitMethod(
          Opcodes.ACC_PRIVATE | Opcodes.ACC_SYNTHETIC, PREFIX + name, form, signature, thrown);
    }

    @Override
    public void visitEnd() {
      if (!tracker) {
        state();
      }
      super.visitEnd();
    }

    /**
     *
     *
     * <pre>
     * Object read = null;
     * try { read = ChunkHooks.before(this, position, buffer); } catch (Throwable e) {}
     * if (read == ChunkHooks.HIT) return;
     * afterglow$readChunk(position, buffer);
     * if (read != null) try { ChunkHooks.after(read, buffer); } catch (Throwable e) {}
     * </pre>
     */
    private void aroundRead(MethodVisitor to) {
      Object[] locals = {owner, Opcodes.LONG, "java/nio/ByteBuffer", "java/lang/Object"};
      Label end = new Label();
      Label asked = new Label();
      Label original = new Label();
      to.visitInsn(Opcodes.ACONST_NULL);
      to.visitVarInsn(Opcodes.ASTORE, 4);
      guarded(
          to,
          locals,
          asked,
          () -> {
            to.visitVarInsn(Opcodes.ALOAD, 0);
            to.visitVarInsn(Opcodes.LLOAD, 1);
            to.visitVarInsn(Opcodes.ALOAD, 3);
            to.visitMethodInsn(
                Opcodes.INVOKESTATIC,
                HOOKS,
                "before",
                "(L" + READER + ";JLjava/nio/ByteBuffer;)Ljava/lang/Object;",
                false);
            to.visitVarInsn(Opcodes.ASTORE, 4);
          });
      to.visitVarInsn(Opcodes.ALOAD, 4);
      to.visitFieldInsn(Opcodes.GETSTATIC, HOOKS, "HIT", "Ljava/lang/Object;");
      to.visitJumpInsn(Opcodes.IF_ACMPNE, original);
      to.visitInsn(Opcodes.RETURN);
      here(to, locals, original);
      to.visitVarInsn(Opcodes.ALOAD, 0);
      to.visitVarInsn(Opcodes.LLOAD, 1);
      to.visitVarInsn(Opcodes.ALOAD, 3);
      to.visitMethodInsn(Opcodes.INVOKESPECIAL, owner, PREFIX + "readChunk", READ_CHUNK, false);
      to.visitVarInsn(Opcodes.ALOAD, 4);
      to.visitJumpInsn(Opcodes.IFNULL, end);
      guarded(
          to,
          locals,
          end,
          () -> {
            to.visitVarInsn(Opcodes.ALOAD, 4);
            to.visitVarInsn(Opcodes.ALOAD, 3);
            to.visitMethodInsn(
                Opcodes.INVOKESTATIC,
                HOOKS,
                "after",
                "(Ljava/lang/Object;Ljava/nio/ByteBuffer;)V",
                false);
          });
      to.visitInsn(Opcodes.RETURN);
    }

    private void beforeDeletion(MethodVisitor to) {
      Object[] locals = {owner, DELETING.substring(2, DELETING.length() - 3)};
      guarded(
          to,
          locals,
          new Label(),
          () -> {
            to.visitVarInsn(Opcodes.ALOAD, 1);
            to.visitMethodInsn(
                Opcodes.INVOKESTATIC, HOOKS, "deleting", "(Ljava/lang/Object;)V", false);
          });
      to.visitVarInsn(Opcodes.ALOAD, 0);
      to.visitVarInsn(Opcodes.ALOAD, 1);
      to.visitMethodInsn(Opcodes.INVOKESPECIAL, owner, PREFIX + "notifyDeleting", DELETING, false);
      to.visitInsn(Opcodes.RETURN);
    }

    /** {@code try { body } catch (Throwable e) {}}, and {@code after} behind it. */
    private static void guarded(MethodVisitor to, Object[] locals, Label after, Runnable body) {
      Label begin = new Label();
      Label end = new Label();
      Label thrown = new Label();
      to.visitTryCatchBlock(begin, end, thrown, "java/lang/Throwable");
      to.visitLabel(begin);
      body.run();
      to.visitLabel(end);
      to.visitJumpInsn(Opcodes.GOTO, after);
      to.visitLabel(thrown);
      to.visitFrame(Opcodes.F_FULL, locals.length, locals, 1, new Object[] {"java/lang/Throwable"});
      to.visitInsn(Opcodes.POP);
      here(to, locals, after);
    }

    private static void here(MethodVisitor to, Object[] locals, Label label) {
      to.visitLabel(label);
      to.visitFrame(Opcodes.F_FULL, locals.length, locals, 0, new Object[0]);
    }

    /** The field and methods of {@link HookedReader}. */
    private void state() {
      String field = PREFIX + "file";
      String object = "Ljava/lang/Object;";
      int hidden = Opcodes.ACC_PRIVATE | Opcodes.ACC_TRANSIENT | Opcodes.ACC_SYNTHETIC;
      super.visitField(hidden, field, object, null, null).visitEnd();
      int access = Opcodes.ACC_PUBLIC | Opcodes.ACC_SYNTHETIC;
      MethodVisitor get = super.visitMethod(access, field, "()" + object, null, null);
      get.visitCode();
      get.visitVarInsn(Opcodes.ALOAD, 0);
      get.visitFieldInsn(Opcodes.GETFIELD, owner, field, object);
      get.visitInsn(Opcodes.ARETURN);
      get.visitMaxs(0, 0);
      get.visitEnd();
      MethodVisitor set = super.visitMethod(access, field, "(" + object + ")V", null, null);
      set.visitCode();
      set.visitVarInsn(Opcodes.ALOAD, 0);
      set.visitVarInsn(Opcodes.ALOAD, 1);
      set.visitFieldInsn(Opcodes.PUTFIELD, owner, field, object);
      set.visitInsn(Opcodes.RETURN);
      set.visitMaxs(0, 0);
      set.visitEnd();
    }
  }
}
